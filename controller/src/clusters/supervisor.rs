// SPDX-License-Identifier: Apache-2.0

//! Runs a source for each Cluster of the policy.

mod edge;
mod members;
mod policy;
mod problems;
mod secrets;
mod tokens;

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::mem::discriminant;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use portolan_auth::Issuers;
use portolan_federate::state::LONGEST_TICK;
use portolan_policy::{Access, Cluster, Objects};
use portolan_source::deletions::GuardConfig;
use portolan_source::kubernetes::Resources;
use portolan_source::{HeldDeletions, Sink, file};
use portolan_tablelog::Doubts;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::policy::PolicyFiles;
use super::{ClusterStates, SourceContact};
use crate::edges::EdgeSeats;
use crate::writer::ClusterChange;
use members::Member;
pub(crate) use members::Members;
use problems::{of_networks, unsupported};
pub(crate) use secrets::Home;
use secrets::Secrets;
use tokens::TokenDesk;
pub(super) use tokens::problems as token_problems;

/// Length of the queue of one cluster's events.
const EVENTS: usize = 8;

/// Pauses before the source of a cluster is started again after a panic: each is twice the last one.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Longest wait of the next source of a cluster for the end of the one before, whose guards leave it their state.
const ENDS: Duration = Duration::from_secs(5);

/// Reads a cluster's objects; [`file::watch`], but for tests.
type Read = fn(
    watch::Receiver<Vec<PathBuf>>,
    Arc<str>,
    Sink,
    file::Options,
    CancellationToken,
) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// The sources that run, shared with metrics.
pub(crate) type ClusterSources = Arc<Mutex<BTreeMap<Arc<str>, SourceContact>>>;

/// Starts and stops sources as the policy says.
#[derive(Debug)]
pub(crate) struct Supervisor {
    files: PolicyFiles,
    /// The policy objects of an API server.
    served: Option<watch::Receiver<Resources>>,
    interval: Duration,
    guard: (GuardConfig, Arc<HeldDeletions>),
    changes: mpsc::Sender<ClusterChange>,
    running: BTreeMap<Arc<str>, Running>,
    read: Read,
    tasks: JoinSet<()>,
    sources: ClusterSources,
    states: ClusterStates,
    problems: Vec<String>,
    /// The policy as the writer has it.
    told: Option<(Objects, bool)>,
    /// Whether Services may be exported without a ServiceExport.
    automatic: watch::Sender<bool>,
    /// The clusters that are reached by kubeconfigs.
    members: Members,
    /// Their kubeconfigs that are in Secrets.
    secrets: Secrets,
    /// The clusters that edge controllers send.
    seats: EdgeSeats,
    /// The issuers of their tokens.
    tokens: TokenDesk,
    /// Whether states of clusters outlive a restart.
    keeps_states: bool,
    /// Agents with later versions than those of the tables.
    doubts: Option<Doubts>,
}

/// The source of one cluster. It stops when this is dropped.
#[derive(Debug)]
struct Running {
    way: Way,
    task: Id,
    /// When it is started again after a panic.
    again: Option<Instant>,
    /// The pause before the next start.
    pause: Duration,
    stop: DropGuard,
    /// Cancelled once the source has ended.
    ended: CancellationToken,
}

impl Running {
    /// Stops the source, and waits for its end.
    async fn end(self) {
        drop(self.stop);
        // What a source leaves that ends later does not count.
        let _ = timeout(ENDS, self.ended.cancelled()).await;
    }
}

/// Way to read a cluster.
#[derive(Debug)]
enum Way {
    /// From files.
    Files(watch::Sender<Vec<PathBuf>>),
    /// From its API server.
    Member(Member),
    /// From its edge controller.
    Edge,
}

impl Way {
    /// The same way once more.
    fn again(&self) -> Self {
        match self {
            Self::Files(paths) => Self::Files(watch::Sender::new(paths.borrow().clone())),
            Self::Member(member) => Self::Member(member.clone()),
            Self::Edge => Self::Edge,
        }
    }
}

/// The writer is gone.
struct WriterGone;

impl<T> From<mpsc::error::SendError<T>> for WriterGone {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self
    }
}

impl Supervisor {
    /// A supervisor that looks at the policy's files at an interval, and guards the deletions of each
    /// cluster by itself. It keeps the contacts of its sources in `sources`.
    pub(crate) fn new(
        policy: Vec<PathBuf>,
        interval: Duration,
        guard: (GuardConfig, Arc<HeldDeletions>),
        changes: mpsc::Sender<ClusterChange>,
        sources: ClusterSources,
        states: ClusterStates,
        members: Members,
    ) -> Self {
        Self {
            files: PolicyFiles::new(policy),
            served: None,
            interval,
            guard,
            changes,
            running: BTreeMap::new(),
            read: |paths, cluster, sink, options, token| {
                Box::pin(file::watch(paths, cluster, sink, options, token))
            },
            tasks: JoinSet::new(),
            sources,
            states,
            problems: Vec::new(),
            told: None,
            automatic: watch::Sender::new(false),
            members,
            secrets: Secrets::default(),
            seats: EdgeSeats::default(),
            tokens: TokenDesk::default(),
            keeps_states: true,
            doubts: None,
        }
    }

    /// Answers doubts about the versions of clusters that are reached by kubeconfigs.
    pub(crate) fn with_doubts(mut self, doubts: Doubts) -> Self {
        self.doubts = Some(doubts);
        self
    }

    /// Takes clusters from edge controllers. `keeps_states` says whether states of clusters outlive a restart.
    pub(crate) fn with_edges(mut self, seats: EdgeSeats, keeps_states: bool) -> Self {
        self.seats = seats;
        self.keeps_states = keeps_states;
        self
    }

    /// Tells the verifier of tokens the issuers of edge controllers.
    pub(crate) fn with_tokens(mut self, issuers: watch::Sender<Arc<Issuers>>) -> Self {
        self.tokens = TokenDesk::new(issuers);
        self
    }

    /// Reads the Secrets that Clusters name at an API server.
    pub(crate) fn at_home(mut self, home: Home) -> Self {
        self.secrets = Secrets::new(home);
        self
    }

    /// Runs until the token is cancelled, or the writer is gone.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let _ = token.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&mut self) -> Result<(), WriterGone> {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let next_start = self.next_start();
            tokio::select! {
                _ = ticks.tick() => {
                    let is_news = self.refresh().await;
                    self.read_tokens().await;
                    if is_news {
                        self.change().await?;
                    }
                    self.read_members().await?;
                    self.tell_problems().await?;
                }
                Some(()) = policy::changed(&mut self.served) => self.take_served().await?,
                Some(trial) = self.members.tried() => self.replace(trial).await?,
                Some(read) = self.secrets.read() => self.take_secret(read).await?,
                Some(ended) = self.tasks.join_next_with_id() => {
                    if let Err(error) = ended {
                        let task = error.id();
                        if let Ok(panic) = error.try_into_panic() {
                            self.panicked(task, &*panic);
                        }
                    }
                }
                () = until(next_start) => self.start_again().await?,
            }
        }
    }

    /// The source of one cluster has a bug. That cluster stays as it was, others go on.
    fn panicked(&mut self, task: Id, panic: &(dyn Any + Send)) {
        let mut running = self.running.iter_mut();
        let Some((cluster, running)) = running.find(|(_, running)| running.task == task) else {
            return;
        };
        let pause = running.pause;
        tracing::error!(
            %cluster,
            panic = in_words(panic),
            ?pause,
            "the source of the cluster panicked; its objects stay as they were, and it starts again"
        );
        running.again = Some(Instant::now() + pause);
        running.pause = (pause * 2).min(PAUSES[1]);
        let mut states = self.states.lock();
        *states.restarts.entry(Arc::clone(cluster)).or_default() += 1;
    }

    fn next_start(&self) -> Option<Instant> {
        self.running
            .values()
            .filter_map(|running| running.again)
            .min()
    }

    /// Starts the sources again whose pause is over.
    async fn start_again(&mut self) -> Result<(), WriterGone> {
        let now = Instant::now();
        let is_due = |running: &Running| running.again.is_some_and(|again| again <= now);
        let due = self.running.iter().filter(|(_, running)| is_due(running));
        let due: Vec<_> = due
            .map(|(name, running)| (Arc::clone(name), running.way.again(), running.pause))
            .collect();
        for (cluster, way, pause) in due {
            self.start(cluster, way, pause).await?;
        }
        Ok(())
    }

    /// Makes the sources those that the policy asks for.
    async fn change(&mut self) -> Result<(), WriterGone> {
        let clusters: Vec<_> = self.files.objects().clusters.values().cloned().collect();
        self.tell_policies().await?;
        for name in self.left(&clusters) {
            self.running.remove(&name);
            self.guard.1.forget(&name);
            self.lock().remove(&name);
            self.members.forget(&name);
            self.secrets.forget(&name);
            self.seats.close(&name);
            tracing::info!(cluster = %name, "cluster left; its agents keep the last table");
            self.changes.send(ClusterChange::Left(name)).await?;
        }
        for cluster in &clusters {
            match &cluster.access {
                Access::Files(paths) => {
                    let paths = paths.iter().map(PathBuf::from).collect();
                    self.read(&cluster.meta.name, paths).await?;
                }
                Access::Edge(_) => self.expect_edge(&cluster.meta.name).await?,
                _ => {}
            }
        }
        self.tell_problems().await?;
        if clusters.is_empty() && self.files.is_known() {
            self.changes.send(ClusterChange::None).await?;
        }
        Ok(())
    }

    /// Tells the writer all that is wrong, if that is other than before.
    async fn tell_problems(&mut self) -> Result<(), WriterGone> {
        let objects = self.files.objects();
        let mut problems = self.files.problems().to_vec();
        problems.extend(of_networks(objects));
        let clusters = objects.clusters.values();
        problems.extend(clusters.filter_map(|cluster| match &cluster.access {
            Access::Files(_) => None,
            Access::KubeconfigFile(_) => self.members.problem(&cluster.meta.name, "kubeconfigFile"),
            Access::KubeconfigSecret { .. } => {
                self.members.problem(&cluster.meta.name, "kubeconfigSecret")
            }
            Access::Edge(_) => self.edge_problem(&cluster.meta.name),
            Access::Local => Some(unsupported(cluster)),
        }));
        problems.extend_from_slice(self.tokens.problems());
        if problems != self.problems {
            self.problems.clone_from(&problems);
            self.changes.send(ClusterChange::Problems(problems)).await?;
        }
        Ok(())
    }

    /// The clusters that run and have no Cluster any more.
    fn left(&self, clusters: &[Cluster]) -> Vec<Arc<str>> {
        let is_there = |name: &str| clusters.iter().any(|cluster| cluster.meta.name == name);
        let running = self.running.keys();
        running.filter(|name| !is_there(name)).cloned().collect()
    }

    /// Reads a cluster's objects from these paths.
    async fn read(&mut self, name: &str, paths: Vec<PathBuf>) -> Result<(), WriterGone> {
        if let Some(Way::Files(running)) = self.running.get(name).map(|running| &running.way) {
            running.send_if_modified(|now| {
                let is_new = *now != paths;
                *now = paths;
                is_new
            });
            return Ok(());
        }
        let way = Way::Files(watch::Sender::new(paths));
        self.join(name.into(), way).await
    }

    /// Starts the source of a cluster that has none, or another kind of source.
    async fn join(&mut self, cluster: Arc<str>, way: Way) -> Result<(), WriterGone> {
        tracing::info!(%cluster, "cluster joined");
        self.start(cluster, way, PAUSES[0]).await
    }

    /// Starts the source of a cluster, and has the writer take its events. A source that ran stops. If it read the
    /// cluster in the same way, the deletion guards go on from there; the first listing of another way is believed.
    async fn start(
        &mut self,
        cluster: Arc<str>,
        way: Way,
        pause: Duration,
    ) -> Result<(), WriterGone> {
        let (sink, events) = Sink::channel(EVENTS);
        let token = CancellationToken::new();
        if !matches!(way, Way::Member(_)) {
            self.members.forget(&cluster);
        }
        if !matches!(way, Way::Edge) {
            self.seats.close(&cluster);
        }
        if let Some(before) = self.running.remove(&cluster) {
            let is_same = discriminant(&before.way) == discriminant(&way);
            before.end().await;
            if !is_same {
                self.guard.1.forget(&cluster);
            }
        }
        if !matches!(way, Way::Edge) {
            // After the end of the source, whose streams have plans made.
            self.members.leave_plans(&cluster);
        }
        let (task, ended) = match &way {
            Way::Files(paths) => self.start_files(&cluster, paths.subscribe(), sink, token.clone()),
            Way::Member(member) => self.start_member(&cluster, member, sink, &token),
            Way::Edge => self.start_edge(&cluster, sink, token.clone()),
        };
        let has_files = matches!(way, Way::Files(_));
        let running = Running {
            way,
            task,
            again: None,
            pause,
            stop: token.drop_guard(),
            ended,
        };
        self.running.insert(Arc::clone(&cluster), running);
        let joined = ClusterChange::Joined {
            cluster,
            has_files,
            events,
        };
        Ok(self.changes.send(joined).await?)
    }

    fn start_files(
        &mut self,
        cluster: &Arc<str>,
        paths: watch::Receiver<Vec<PathBuf>>,
        sink: Sink,
        token: CancellationToken,
    ) -> (Id, CancellationToken) {
        // Each reading is a contact: a longer silence is that of a cluster out of contact.
        let interval = self.interval.min(LONGEST_TICK);
        let options = file::Options {
            guard: Some(self.guard.clone()),
            shares: Some(self.automatic.subscribe()),
            ..file::Options::new(interval)
        };
        let contact = SourceContact::Files(Arc::clone(&options.contact));
        self.lock().insert(Arc::clone(cluster), contact);
        let watch = (self.read)(paths, Arc::clone(cluster), sink, options, token);
        self.spawn(watch)
    }

    /// Runs a source. Returns its task, and a token that is cancelled once the source has ended or panicked, and its
    /// guards are gone.
    fn spawn(
        &mut self,
        source: impl Future<Output = ()> + Send + 'static,
    ) -> (Id, CancellationToken) {
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let task = self.tasks.spawn(async move {
            source.await;
            drop(guard);
        });
        (task.id(), ended)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Arc<str>, SourceContact>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a time; for ever without one.
async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn in_words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests;
