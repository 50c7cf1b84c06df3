// SPDX-License-Identifier: Apache-2.0

//! Leader election by a `coordination.k8s.io/v1` Lease, as in client-go.
//!
//! All replicas serve; only writers to one place, such as an export of DNS records, must be alone.
//! A leader that cannot renew its Lease stops before another may begin; clocks need not agree for
//! that, only run equally fast.
//!
//! The leader may keep a text in the Lease, which the others read there ([`Board`]).

mod board;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use board::{Board, LONGEST_NOTE};
use board::{note, put};

/// The time for the release of a Lease at the end; without it others wait for the Lease to expire.
const RELEASE: Duration = Duration::from_secs(5);

/// The Lease, the candidate and the times.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The candidate's name; different for each process, also for the next one in the same pod.
    pub identity: String,
    /// The duration of the Lease, at least a second; the Lease has whole seconds.
    pub duration: Duration,
    /// The time after which a leader that cannot renew stops; less than `duration` by enough time
    /// to stop.
    pub renew_deadline: Duration,
    /// From one attempt to the next.
    pub retry: Duration,
    /// Text that the leader keeps in the Lease. The Lease has none until a leader tells one.
    pub board: Board,
}

impl LeaseConfig {
    /// With client-go's times: 15 s, 10 s and 2 s.
    #[must_use]
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            board: Board::default(),
        }
    }
}

/// Runs `writer` whenever this candidate leads, until `token` is cancelled.
///
/// When it no longer leads, or must stop, the writer's token is cancelled; if it has not ended when
/// another may begin, it is dropped where it is. A writer that ends by itself gives the leadership
/// up.
pub async fn lead<W, F>(
    client: Client,
    config: LeaseConfig,
    token: CancellationToken,
    mut writer: W,
) where
    W: FnMut(CancellationToken) -> F,
    F: Future<Output = ()>,
{
    let mut contender = Contender {
        api: Api::namespaced(client, &config.namespace),
        config,
        seen: None,
        renewed: Instant::now(),
        tells: false,
    };
    while let Some(()) = token.run_until_cancelled(contender.acquire()).await {
        info!(lease = %contender.config.name, "leading");
        let stop = CancellationToken::new();
        let mut work = pin!(writer(stop.clone()));
        let is_working = tokio::select! {
            () = &mut work => false,
            () = contender.hold() => true,
            () = token.cancelled() => true,
        };
        stop.cancel();
        if is_working && timeout_at(contender.valid_until(), work).await.is_err() {
            warn!(lease = %contender.config.name, "the writer did not stop in time, ended");
        }
        info!(lease = %contender.config.name, "no longer leading");
        contender.release().await;
        if token
            .run_until_cancelled(sleep(contender.config.retry))
            .await
            .is_none()
        {
            return;
        }
    }
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// This candidate holds the Lease, from the time before the attempt.
    Held,
    /// Another candidate holds it.
    Others,
    /// Another candidate wrote at the same time.
    Conflict,
}

struct Contender {
    api: Api<Lease>,
    config: LeaseConfig,
    /// The last seen version of the Lease, and the local time of its first sight: the holder's
    /// clock does not matter.
    seen: Option<(String, Instant)>,
    /// The beginning of the last successful attempt.
    renewed: Instant,
    /// `true` if the text in the Lease is this candidate's: it knows that it holds the Lease since an attempt before. A
    /// take-over whose answer was lost is not known.
    tells: bool,
}

impl Contender {
    async fn acquire(&mut self) {
        loop {
            // A connection to a server that is gone may be silent for minutes.
            match timeout(self.config.renew_deadline, self.attempt()).await {
                Ok(Ok(Outcome::Held)) => return,
                Ok(Ok(Outcome::Others | Outcome::Conflict)) => {}
                Err(_) => {
                    warn!(lease = %self.config.name, "the API server does not answer, retrying");
                }
                Ok(Err(error)) => {
                    warn!(lease = %self.config.name, %error, "cannot look at the Lease, retrying");
                }
            }
            sleep(self.config.retry).await;
        }
    }

    /// Renews until that does not work any more.
    async fn hold(&mut self) {
        loop {
            let left = (self.renewed + self.config.renew_deadline) - Instant::now();
            tokio::select! {
                () = sleep(self.config.retry.min(left)) => {}
                () = self.config.board.urgent() => {}
            }
            let deadline = self.renewed + self.config.renew_deadline;
            match timeout_at(deadline, self.attempt()).await {
                Ok(Ok(Outcome::Held)) => continue,
                Ok(Ok(Outcome::Others)) => {
                    warn!(lease = %self.config.name, "another has taken the Lease");
                    return;
                }
                Ok(Ok(Outcome::Conflict)) => {}
                Ok(Err(error)) => {
                    warn!(lease = %self.config.name, %error, "cannot renew the Lease, retrying");
                }
                Err(_) => {}
            }
            if Instant::now() >= deadline {
                warn!(lease = %self.config.name, "the Lease was not renewed in time");
                return;
            }
        }
    }

    /// Until when no other begins.
    fn valid_until(&self) -> Instant {
        self.renewed + self.config.duration
    }

    /// Takes the Lease if it is free, and renews it if this candidate holds it. The text in it is read if another
    /// candidate wrote it.
    async fn attempt(&mut self) -> kube::Result<Outcome> {
        let begin = Instant::now();
        let found = self.api.get_opt(&self.config.name).await?;
        let is_new = found.is_none();
        let mut lease = found.unwrap_or_else(|| self.empty());
        let version = lease.metadata.resource_version.clone().unwrap_or_default();
        let since = match &self.seen {
            Some((seen, since)) if *seen == version => *since,
            // From now on, not from `begin`: it may have been written after that.
            _ => Instant::now(),
        };
        self.seen = Some((version, since));
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
        let holder = holder.unwrap_or_default();
        let is_ours = holder == self.config.identity;
        let duration = spec.and_then(|spec| spec.lease_duration_seconds);
        let duration = u64::try_from(duration.unwrap_or(0)).unwrap_or(0);
        let is_valid = since + Duration::from_secs(duration) > Instant::now();
        let found = note(&lease);
        if !is_ours && !holder.is_empty() && is_valid {
            self.config.board.read(found);
            return Ok(Outcome::Others);
        }
        // Who takes the Lease keeps the text in it: it has told nothing since it read that.
        self.tells &= is_ours;
        let (told, urgent) = self.config.board.told();
        let told = told.filter(|_| self.tells);
        self.sign(lease.spec.get_or_insert_default(), is_ours);
        put(&mut lease, told.as_deref().or(found.as_deref()));
        let params = PostParams::default();
        let written = if is_new {
            self.api.create(&params, &lease).await
        } else {
            // With the version that was read: refused if another one wrote since.
            self.api.replace(&self.config.name, &params, &lease).await
        };
        match written {
            Ok(_) => {
                self.renewed = begin;
                match std::mem::replace(&mut self.tells, true) {
                    true => self.config.board.wrote(urgent),
                    false => self.config.board.took_over(found),
                }
                Ok(Outcome::Held)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Outcome::Conflict),
            Err(error) => Err(error),
        }
    }

    fn empty(&self) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.config.name.clone()),
                ..ObjectMeta::default()
            },
            spec: None,
        }
    }

    fn sign(&self, spec: &mut LeaseSpec, is_ours: bool) {
        let now = Some(MicroTime(Timestamp::now()));
        if !is_ours {
            spec.acquire_time.clone_from(&now);
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        spec.holder_identity = Some(self.config.identity.clone());
        spec.lease_duration_seconds =
            Some(i32::try_from(self.config.duration.as_secs().max(1)).unwrap_or(i32::MAX));
        spec.renew_time = now;
    }

    /// Releases the Lease, so that another candidate may begin at once.
    async fn release(&mut self) {
        match timeout(RELEASE, self.give_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                warn!(lease = %self.config.name, %error, "cannot release the Lease");
            }
            Err(_) => warn!(lease = %self.config.name, "cannot release the Lease in time"),
        }
    }

    async fn give_up(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.config.name).await? else {
            return Ok(());
        };
        let found = note(&lease);
        let (told, urgent) = self.config.board.told();
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.config.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        put(&mut lease, told.as_deref().or(found.as_deref()));
        let params = PostParams::default();
        self.api.replace(&self.config.name, &params, &lease).await?;
        self.config.board.wrote(urgent);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body as RequestBody;
    use tower_test::mock::pair;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_candidate_gives_up_a_request_without_an_answer() {
        let (service, mut requests) = pair::<Request<RequestBody>, Response<Body>>();
        let client = Client::new(service, "default");
        let config = LeaseConfig::new("default", "portolan", "a");
        let task = lead(client, config, CancellationToken::new(), |_| async {});
        let task = tokio::spawn(task);
        let begin = Instant::now();
        let _silent = requests.next_request().await.unwrap();
        let _second = requests.next_request().await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(15));
        task.abort();
    }

    /// A Lease of another holder, as its leader wrote it.
    fn lease_of(holder: &str, text: &str) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..LeaseSpec::default()
        };
        let mut lease = Lease {
            spec: Some(spec),
            ..Lease::default()
        };
        put(&mut lease, Some(text));
        lease
    }

    #[tokio::test(start_paused = true)]
    async fn a_candidate_reads_the_text_of_a_leader_and_keeps_it_when_it_takes_the_lease() {
        let (service, mut requests) = pair::<Request<RequestBody>, Response<Body>>();
        let client = Client::new(service, "default");
        let board = Board::default();
        let config = LeaseConfig {
            board: board.clone(),
            ..LeaseConfig::new("default", "portolan", "b")
        };
        let task = lead(client, config, CancellationToken::new(), |_| async {});
        let task = tokio::spawn(task);
        let (_, answer) = requests.next_request().await.unwrap();
        let held = serde_json::to_vec(&lease_of("a", "step 3")).unwrap();
        answer.send_response(Response::new(Body::from(held)));
        board.looked().await;
        assert_eq!(board.take().as_deref(), Some("step 3"));
        // Released: what the leader told last counts.
        let (_, answer) = requests.next_request().await.unwrap();
        let free = serde_json::to_vec(&lease_of("", "step 2")).unwrap();
        answer.send_response(Response::new(Body::from(free)));
        let (request, answer) = requests.next_request().await.unwrap();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let written: Lease = serde_json::from_slice(&body).unwrap();
        assert_eq!(note(&written).as_deref(), Some("step 2"));
        answer.send_response(Response::new(Body::from(body)));
        // The next request is the release, after the writer ended.
        let _released = requests.next_request().await.unwrap();
        assert_eq!(board.take().as_deref(), Some("step 2"));
        task.abort();
    }
}
