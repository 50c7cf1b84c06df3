// SPDX-License-Identifier: Apache-2.0

//! Clusters that are reached by kubeconfigs: a client each, whose watches are a source, and a writer of MCS objects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use portolan_policy::Access;
use portolan_source::Sink;
use portolan_source::edge;
use portolan_source::kubernetes::{
    Besides, MemberConfig, MemberError, MemberId, Options, Stats, may_replace, newest_versions,
    watch_with,
};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::secrets::SecretRead;
use super::{Running, SourceContact, Supervisor, Way, WriterGone};
use crate::edges::{EdgePlans, send_plans, send_work};
use crate::mcs::{Executor, Leading, Works, WriteCounts};
use crate::publishing::answer_doubts;

/// The time after which a new kubeconfig that could not be used is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// The most objects of each kind of a cluster: the bound of all kinds of one with an edge controller.
const MOST_OBJECTS: usize = edge::LIMITS.objects;

/// A cluster that is reached by a kubeconfig.
#[derive(Clone)]
pub(super) struct Member {
    client: Client,
    /// Of the kubeconfig.
    fingerprint: u64,
    /// Of the cluster.
    id: MemberId,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").finish_non_exhaustive()
    }
}

/// State that clusters that are reached by kubeconfigs share.
#[derive(Debug)]
pub(crate) struct Members {
    /// Planned writes.
    works: Works,
    /// Plans that edges serve imports by.
    plans: EdgePlans,
    leading: Leading,
    counts: WriteCounts,
    /// Writers of MCS objects, and questions to API servers.
    helpers: JoinSet<()>,
    /// New kubeconfigs that are tried while the old ones are in use.
    trials: JoinSet<Trial>,
    /// By cluster the kubeconfigs that are tried, or failed, and when they are tried again.
    trying: BTreeMap<Arc<str>, (u64, Option<Instant>)>,
    /// Problems with kubeconfigs, by cluster.
    problems: BTreeMap<Arc<str>, String>,
}

/// The result of a trial.
#[derive(Debug)]
pub(super) struct Trial {
    cluster: Arc<str>,
    fingerprint: u64,
    result: Result<Member, MemberError>,
}

impl Members {
    /// Writers of what `works` has, while this replica leads.
    pub(crate) fn new(
        (works, plans): (Works, EdgePlans),
        leading: Leading,
        counts: WriteCounts,
    ) -> Self {
        Self {
            works,
            plans,
            leading,
            counts,
            helpers: JoinSet::new(),
            trials: JoinSet::new(),
            trying: BTreeMap::new(),
            problems: BTreeMap::new(),
        }
    }

    /// The result of the next trial; `None` if none is under way.
    pub(super) async fn tried(&mut self) -> Option<Trial> {
        match self.trials.join_next().await? {
            Ok(trial) => Some(trial),
            // Never cancelled, so it panicked: a bug, not to be hidden.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Returns the problem with a cluster's kubeconfig, which a field of `spec.access` names, in words.
    pub(super) fn problem(&self, cluster: &str, field: &str) -> Option<String> {
        let problem = self.problems.get(cluster)?;
        Some(format!("Cluster {cluster}: spec.access.{field}: {problem}"))
    }

    /// Sends the planned writes into a cluster to its edge controllers.
    pub(super) fn send_work(&self, cluster: &Arc<str>) -> edge::BeginSending {
        send_work(cluster, self.works.clone(), self.leading.clone())
    }

    /// Sends plans of the imports of a cluster to its edge controllers.
    pub(super) fn send_plans(&self, cluster: &Arc<str>) -> edge::BeginSending {
        send_plans(cluster, self.plans.clone(), self.leading.clone())
    }

    /// Has no plans be made any more for a cluster without an edge controller.
    pub(super) fn leave_plans(&self, cluster: &str) {
        self.plans.leave(cluster);
    }

    /// Forgets a cluster that is not reached by a kubeconfig any more.
    pub(super) fn forget(&mut self, cluster: &str) {
        self.works.leave(cluster);
        self.trying.remove(cluster);
        self.problems.remove(cluster);
    }

    /// Returns `true` if a kubeconfig is to be tried now.
    fn may_try(&self, cluster: &str, fingerprint: u64) -> bool {
        match self.trying.get(cluster) {
            Some((tried, again)) if *tried == fingerprint => {
                again.is_some_and(|again| again <= Instant::now())
            }
            _ => true,
        }
    }
}

impl Supervisor {
    /// Reads the kubeconfigs of all clusters that have one, and starts or tries those that changed.
    pub(super) async fn read_members(&mut self) -> Result<(), WriterGone> {
        let clusters = self.files.objects().clusters.values();
        let paths = clusters.filter_map(|cluster| match &cluster.access {
            Access::KubeconfigFile(path) => {
                Some((Arc::<str>::from(&*cluster.meta.name), PathBuf::from(path)))
            }
            _ => None,
        });
        let paths: Vec<_> = paths.collect();
        self.begin_secrets();
        if paths.is_empty() {
            return Ok(());
        }
        for (cluster, read) in read_all(paths).await {
            match read {
                Ok(config) => self.read_member(cluster, config).await?,
                Err(error) => self.fault(cluster, &error),
            }
        }
        Ok(())
    }

    /// Takes a kubeconfig of a Secret.
    pub(super) async fn take_secret(&mut self, read: SecretRead) -> Result<(), WriterGone> {
        if !self.secrets.note(&read) {
            return Ok(());
        }
        match read.result {
            Ok(config) => self.read_member(read.cluster, config).await?,
            Err(error) => self.fault(read.cluster, &error),
        }
        self.tell_problems().await
    }

    async fn read_member(
        &mut self,
        cluster: Arc<str>,
        config: MemberConfig,
    ) -> Result<(), WriterGone> {
        let fingerprint = config.fingerprint;
        let in_use = match self.running.get(&cluster).map(|running| &running.way) {
            Some(Way::Member(member)) => Some(member.clone()),
            _ => None,
        };
        if in_use
            .as_ref()
            .is_some_and(|member| member.fingerprint == fingerprint)
        {
            self.members.trying.remove(&cluster);
            self.members.problems.remove(&cluster);
            return Ok(());
        }
        if !self.members.may_try(&cluster, fingerprint) {
            return Ok(());
        }
        let client = match config.client().await {
            Ok(client) => client,
            Err(error) => {
                self.fault(cluster, &error);
                return Ok(());
            }
        };
        let member = Member {
            client,
            fingerprint,
            id: MemberId::default(),
        };
        let Some(old) = in_use else {
            self.members.problems.remove(&cluster);
            return self.join(cluster, Way::Member(member)).await;
        };
        // The new client shows that it can list before the old one stops.
        let of_cluster = Arc::clone(&cluster);
        self.members.trying.insert(cluster, (fingerprint, None));
        self.members.trials.spawn(async move {
            let result = may_replace(&member.client, &old.client, &old.id).await;
            Trial {
                cluster: of_cluster,
                fingerprint,
                result: result.map(|id| Member { id, ..member }),
            }
        });
        Ok(())
    }

    /// Takes a new client in use, if it can be used.
    pub(super) async fn replace(&mut self, trial: Trial) -> Result<(), WriterGone> {
        let Trial {
            cluster,
            fingerprint,
            result,
        } = trial;
        let is_current = self.members.trying.get(&cluster) == Some(&(fingerprint, None));
        let running = self.running.get(&cluster);
        let Some(Running { pause, .. }) = running.filter(|_| is_current) else {
            return Ok(());
        };
        let pause = *pause;
        match result {
            Ok(member) => {
                tracing::info!(%cluster, "another kubeconfig is in use");
                self.members.trying.remove(&cluster);
                self.members.problems.remove(&cluster);
                self.start(cluster, Way::Member(member), pause).await
            }
            Err(error) => {
                let again = Some(Instant::now() + AGAIN);
                let trying = (fingerprint, again);
                self.members.trying.insert(Arc::clone(&cluster), trying);
                self.fault(cluster, &error);
                Ok(())
            }
        }
    }

    fn fault(&mut self, cluster: Arc<str>, error: &MemberError) {
        let is_running = self.running.contains_key(&cluster);
        let stays = if is_running {
            "; the client before stays in use"
        } else {
            ""
        };
        let problem = format!("{error}{stays}");
        self.members.problems.insert(cluster, problem);
    }

    /// Starts the watches of a cluster, and its writer. Both end with the token.
    pub(super) fn start_member(
        &mut self,
        cluster: &Arc<str>,
        member: &Member,
        sink: Sink,
        token: &CancellationToken,
    ) -> (Id, CancellationToken) {
        let (guard, holds) = &self.guard;
        let stats = Arc::new(Stats::holding(holds));
        let options = Options {
            guard: *guard,
            most_objects: Some(MOST_OBJECTS),
            ..Options::default()
        };
        let contact = SourceContact::Watches(Arc::clone(&stats));
        self.lock().insert(Arc::clone(cluster), contact);
        let executor = Executor {
            client: member.client.clone(),
            cluster: Arc::clone(cluster),
            work: self.members.works.join(cluster),
            leading: self.members.leading.clone(),
            counts: self.members.counts.clone(),
        };
        // Those of clusters that left have ended.
        while let Some(ended) = self.members.helpers.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a writer of MCS objects or a question panicked");
            }
        }
        let stop = token.clone();
        self.members.helpers.spawn(async move {
            let _ = stop.run_until_cancelled(executor.run()).await;
        });
        self.answer_questions(cluster, member, token);
        let besides = Besides {
            names: None,
            shares: Some(self.automatic.subscribe()),
        };
        let watch = watch_with(
            member.client.clone(),
            Arc::clone(cluster),
            options,
            besides,
            sink,
            stats,
            token.clone(),
        );
        self.spawn(watch)
    }

    /// Learns which cluster it is, while the credential permits that, and asks its API server about the versions of
    /// agents, as long as its source runs.
    fn answer_questions(&mut self, cluster: &Arc<str>, member: &Member, token: &CancellationToken) {
        let (Member { client, id, .. }, stop) = (member.clone(), token.clone());
        self.members.helpers.spawn(async move {
            let _ = stop.run_until_cancelled(id.learn(&client)).await;
        });
        let Some(doubts) = &self.doubts else {
            return;
        };
        let (doubts, client, stop) = (doubts.of(cluster), member.client.clone(), token.clone());
        let newest = move || {
            let client = client.clone();
            async move { newest_versions(&client).await }
        };
        self.members.helpers.spawn(async move {
            let _ = stop
                .run_until_cancelled(answer_doubts(newest, doubts))
                .await;
        });
    }
}

/// Reads kubeconfigs on a thread that may block.
async fn read_all(
    paths: Vec<(Arc<str>, PathBuf)>,
) -> Vec<(Arc<str>, Result<MemberConfig, MemberError>)> {
    let read = move || {
        let read =
            |(cluster, path): (Arc<str>, PathBuf)| (cluster, MemberConfig::read(Path::new(&path)));
        paths.into_iter().map(read).collect()
    };
    match tokio::task::spawn_blocking(read).await {
        Ok(all) => all,
        // Never cancelled, so it panicked: a bug, not to be hidden.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
