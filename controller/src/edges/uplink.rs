// SPDX-License-Identifier: Apache-2.0

//! The streams of an edge controller to the replicas of the centre.
//!
//! Each replica has a task of its own. One transition is under way at a time: changes that come meanwhile are in the
//! next one, each object once.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_edge::Transition;
use portolan_edge::work::{WorkError, WorkInbox};
use portolan_proto::{VERSION, v1};
use portolan_subscription::{Dialer, End, Reconnect, Resolver, Security, Target};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Uri;
use tonic::{Request, Status, Streaming};
use v1::centre_message::Message as Answer;
use v1::edge_message::Message;
use v1::federation_client::FederationClient;

use super::UplinkStats;
use super::desk::{Desk, Place};
use super::metrics::Current;
use super::objects::{Objects, Stream};
use super::plan_desk::{PlanDesk, PlanPlace};

/// The time between two lookups of the centre's names.
const LOOKUPS: Duration = Duration::from_secs(30);
/// The time between two `EdgeAlive`.
const ALIVE: Duration = Duration::from_secs(10);
/// Time limit for a replica to welcome this edge.
const PATIENCE: Duration = Duration::from_secs(10);
/// A stream that broke sooner gives no reason to connect again quickly.
const LASTED: Duration = Duration::from_secs(10);
/// About the size of a message with objects, in bytes.
const PART_BYTES: usize = 256 * 1024;

/// Time since the last contact with the source, once there was one.
pub(super) type Silence = Arc<dyn Fn() -> Option<Duration> + Send + Sync>;

/// State that all streams of an edge share.
#[derive(Clone)]
pub(super) struct Uplink {
    pub(super) cluster: String,
    pub(super) name: String,
    /// A random number of this process.
    pub(super) instance: u64,
    pub(super) security: Security,
    pub(super) objects: Arc<Objects>,
    /// Where work goes; `None` if this edge writes nothing.
    pub(super) desk: Option<Arc<Desk>>,
    /// Where plans go.
    pub(super) plans: Arc<PlanDesk>,
    pub(super) silence: Silence,
    pub(super) stats: Arc<UplinkStats>,
}

impl fmt::Debug for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Uplink");
        debug
            .field("cluster", &self.cluster)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The end of a stream.
#[derive(Debug)]
struct Ended {
    end: End,
    /// `None` if it has been logged.
    reason: Option<String>,
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        Self { end, reason: None }
    }
}

impl Uplink {
    /// Keeps a stream to each replica, until this future is dropped.
    pub(super) async fn run(self, upstreams: Vec<Uri>) {
        self.objects.synced().await;
        let mut resolver = Resolver::default();
        let mut streams: BTreeMap<SocketAddr, AbortOnDropHandle<()>> = BTreeMap::new();
        loop {
            let targets = resolver.resolve(&upstreams).await;
            self.stats.set_replicas(targets.len());
            streams.retain(|address, _| targets.iter().any(|target| target.address == *address));
            for target in targets {
                streams.entry(target.address).or_insert_with(|| {
                    let follow = self.clone().follow(target);
                    AbortOnDropHandle::new(tokio::spawn(follow))
                });
            }
            sleep(LOOKUPS).await;
        }
    }

    /// Keeps a stream to one replica.
    async fn follow(self, target: Target) {
        let mut dialer = Dialer::new(self.security.clone());
        let mut reconnect = Reconnect::new(RandomState::new().hash_one(()));
        let mut last = None;
        loop {
            if reconnect.current().is_none() {
                reconnect.begin_round(vec![target.clone()]);
            }
            let Ended { end, reason } = match self.attempt(&mut dialer, &target).await {
                Ok(never) => match never {},
                Err(ended) => ended,
            };
            self.stats.failed();
            match &reason {
                Some(reason) if last.as_ref() == Some(reason) => {
                    tracing::debug!(%target, reason, "stream to the centre ended");
                }
                Some(reason) => {
                    tracing::warn!(%target, reason, "stream to the centre ended; retrying (logged once)");
                }
                None => {}
            }
            last = reason;
            sleep(reconnect.after(end)).await;
        }
    }

    /// Connects, and sends objects until the stream ends.
    async fn attempt(
        &self,
        dialer: &mut Dialer,
        target: &Target,
    ) -> Result<std::convert::Infallible, Ended> {
        let (channel, authorization) = dialer.connect(target).await?;
        let (messages, receiver) = mpsc::channel(1);
        let (plans, plan_hashes) = self.plans.open();
        let hello = Message::Hello(v1::EdgeHello {
            version: VERSION,
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            edge_version: env!("CARGO_PKG_VERSION").to_owned(),
            instance: self.instance,
            writes: self.desk.is_some(),
            plans: true,
            plan_hashes,
        });
        // The channel is empty, and its other end is here.
        let _ = messages.try_send(message(hello));
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value);
        }
        let mut client = FederationClient::new(channel);
        let answers = dialer.answer(target, client.sync(request)).await?;
        let session = Session {
            uplink: self,
            messages,
            answers: answers.into_inner(),
            since: Instant::now(),
            current: None,
            tasks: self.desk.as_ref().map(Tasks::new),
            plans,
            is_standby: false,
        };
        session.run(target).await
    }

    /// An `EdgeAlive`; none before the first contact.
    fn alive(&self) -> Option<v1::EdgeMessage> {
        let silence = (self.silence)()?.as_millis();
        let silence_ms = u64::try_from(silence).unwrap_or(u64::MAX);
        Some(message(Message::Alive(v1::EdgeAlive { silence_ms })))
    }
}

/// The work that comes over one stream.
struct Tasks {
    inbox: WorkInbox,
    place: Place,
}

impl Tasks {
    fn new(desk: &Arc<Desk>) -> Self {
        Self {
            inbox: WorkInbox::default(),
            place: desk.open(),
        }
    }

    fn stage(&mut self, part: v1::CentreWork) -> Result<(), WorkError> {
        let refused = self.inbox.stage(part)?;
        self.place.refuse(&refused);
        Ok(())
    }

    fn commit(&mut self, commit: &v1::CentreWorkCommit) -> Result<(), WorkError> {
        let work = self.inbox.commit(commit)?;
        self.place.set(work);
        Ok(())
    }
}

/// An open stream.
struct Session<'a> {
    uplink: &'a Uplink,
    messages: mpsc::Sender<v1::EdgeMessage>,
    answers: Streaming<v1::CentreMessage>,
    since: Instant,
    /// Present once the replica has taken in a listing.
    current: Option<Current>,
    tasks: Option<Tasks>,
    plans: PlanPlace,
    /// Whether another edge sends the objects, or has when this stream began.
    is_standby: bool,
}

impl Session<'_> {
    async fn run(mut self, target: &Target) -> Result<std::convert::Infallible, Ended> {
        let mut stream = self.welcome(target).await?;
        tracing::info!(%target, "sending the objects of this cluster to the centre");
        let mut ticks = interval(ALIVE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = None;
        loop {
            if under_way.is_none()
                && let Some(transition) = stream.take()
            {
                under_way = Some(transition.commit.number);
                self.send(transition).await?;
            }
            tokio::select! {
                _ = ticks.tick() => {
                    let alive = self.uplink.alive();
                    self.say(alive).await?;
                }
                answer = self.answers.message() => {
                    let number = self.answered(answer)?;
                    if under_way.is_some() && under_way == number {
                        under_way = None;
                        self.uplink.stats.accepted();
                        self.current.get_or_insert_with(|| self.uplink.stats.current());
                    }
                }
                () = stream.changed(), if under_way.is_none() => {}
            }
        }
    }

    /// Awaits the turn of this edge: at once, or while another one sends the objects. Plans come meanwhile.
    async fn welcome(&mut self, target: &Target) -> Result<Stream, Ended> {
        let late = || Err(Status::deadline_exceeded("no welcome in time"));
        loop {
            let next = self.answers.message();
            let answer = match self.is_standby {
                true => next.await,
                false => timeout(PATIENCE, next).await.unwrap_or_else(|_| late()),
            };
            match self.message(answer)? {
                Some(Answer::Welcome(welcome)) => return self.begin(&welcome),
                Some(Answer::Standby(standby)) => {
                    self.is_standby = true;
                    let edge = standby.edge;
                    tracing::info!(%target, edge, "another edge sends the objects of this cluster; waiting");
                }
                Some(message) if self.is_standby => _ = self.take(message)?,
                // Of a newer version.
                None if self.is_standby => {}
                _ => return Err(self.ended("the first answer is no welcome")),
            }
        }
    }

    fn begin(&self, welcome: &v1::CentreWelcome) -> Result<Stream, Ended> {
        if !welcome.plans {
            self.plans.without_plans();
        }
        let begun = self.uplink.objects.begin(&welcome.bucket_hashes);
        begun.map_err(|error| self.ended(&error.to_string()))
    }

    /// Sends a transition. The source may go silent while a slow connection takes it.
    async fn send(&mut self, transition: Transition) -> Result<(), Ended> {
        let mut told = Instant::now();
        let (parts, commit) = transition.into_parts(PART_BYTES);
        for part in parts {
            if told.elapsed() >= ALIVE {
                told = Instant::now();
                let alive = self.uplink.alive();
                self.say(alive).await?;
            }
            self.say(Some(message(Message::Objects(part)))).await?;
        }
        self.say(Some(message(Message::Commit(commit)))).await
    }

    async fn say(&mut self, message: Option<v1::EdgeMessage>) -> Result<(), Ended> {
        let Some(message) = message else {
            return Ok(());
        };
        if self.messages.send(message).await.is_ok() {
            return Ok(());
        }
        // The replica has ended the stream, and says why.
        loop {
            let answer = self.answers.message().await;
            self.message(answer)?;
        }
    }

    /// Takes an answer. Returns the number of the transition that was taken in, if it tells one.
    fn answered(
        &mut self,
        answer: Result<Option<v1::CentreMessage>, Status>,
    ) -> Result<Option<u64>, Ended> {
        match self.message(answer)? {
            Some(message) => self.take(message),
            // Of a newer version.
            None => Ok(None),
        }
    }

    fn take(&mut self, message: Answer) -> Result<Option<u64>, Ended> {
        let done = match (message, &mut self.tasks) {
            (Answer::Accepted(accepted), _) => return Ok(Some(accepted.number)),
            (Answer::Welcome(_) | Answer::Standby(_), _) => {
                return Err(self.ended("a second welcome"));
            }
            (Answer::Work(part), Some(tasks)) => tasks.stage(part).map_err(said),
            (Answer::WorkCommit(commit), Some(tasks)) => tasks.commit(&commit).map_err(said),
            // Work that was not asked for.
            (Answer::Work(_) | Answer::WorkCommit(_), None) => Ok(()),
            (Answer::Plans(part), _) => self.plans.stage(part).map_err(said),
            (Answer::PlanCommit(commit), _) => self.plans.commit(&commit).map_err(said),
        };
        done.map_err(|error| self.ended(&error))?;
        Ok(None)
    }

    fn message(
        &self,
        answer: Result<Option<v1::CentreMessage>, Status>,
    ) -> Result<Option<Answer>, Ended> {
        match answer {
            Ok(Some(answer)) => Ok(answer.message),
            Ok(None) => Err(self.ended("closed by the centre")),
            Err(status) => {
                let reason = format!("{:?}: {}", status.code(), status.message());
                Err(self.ended(&reason))
            }
        }
    }

    fn ended(&self, reason: &str) -> Ended {
        let end = match self.current.is_some() || self.is_standby {
            true => End::Broken {
                lasted: self.since.elapsed() >= LASTED,
            },
            false => End::Refused,
        };
        let reason = Some(reason.to_owned());
        Ended { end, reason }
    }
}

fn said(error: impl fmt::Display) -> String {
    error.to_string()
}

fn message(message: Message) -> v1::EdgeMessage {
    let message = Some(message);
    v1::EdgeMessage { message }
}
