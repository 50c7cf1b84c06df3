// SPDX-License-Identifier: Apache-2.0

//! Leader election by a `coordination.k8s.io/v1` Lease, as in client-go.
//!
//! All replicas serve; only writers to one place, such as an export of DNS records, must be alone.
//! A leader that cannot renew its Lease stops before another may begin; clocks need not agree for
//! that, only run equally fast.

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
            sleep(self.config.retry.min(left)).await;
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

    /// Takes the Lease if it is free, and renews it if this candidate holds it.
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
        let spec = lease.spec.get_or_insert_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let is_ours = holder == self.config.identity;
        let duration = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
        let is_valid = since + Duration::from_secs(duration) > Instant::now();
        if !is_ours && !holder.is_empty() && is_valid {
            return Ok(Outcome::Others);
        }
        self.sign(spec, is_ours);
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
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.config.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let params = PostParams::default();
        self.api.replace(&self.config.name, &params, &lease).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::{Request, Response};
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
}
