// SPDX-License-Identifier: Apache-2.0

//! Probes of a silent server: whether it lives, and whether its version has gone back.
//!
//! An API server that was restored from a backup has lower versions than before. It lets a watch
//! begin at a version that it has not reached yet, and sends nothing until then: only a request
//! shows it.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep_until, timeout};

use super::kinds::Watchable;
use super::trouble::Trouble;
use super::watched::Watched;
use crate::objects::{EndpointSlice, Namespace, Node, Service};

/// Time for which a watch may be silent before the server is asked.
const PAUSE: Duration = Duration::from_secs(15);
/// Time for the server to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// After so many questions in a row without an answer the watch is given up.
const ATTEMPTS: u32 = 3;

type Answer = BoxFuture<'static, Result<Option<u64>, Trouble>>;

/// Asks about one kind.
pub(super) struct Probe<T> {
    api: Api<Watched<T>>,
    due: Instant,
    /// The request in progress, and the version at its beginning.
    asked: Option<(Answer, Option<u64>)>,
    failures: u32,
}

impl<T: Watchable> Probe<T> {
    pub(super) fn new(api: Api<Watched<T>>) -> Self {
        Self {
            api,
            due: Instant::now() + PAUSE,
            asked: None,
            failures: 0,
        }
    }

    /// Something came from the server.
    pub(super) fn heard(&mut self) {
        self.due = Instant::now() + PAUSE;
        self.failures = 0;
    }

    /// Asks at once whether the server has this version.
    pub(super) async fn check(&mut self, version: &str) -> Result<(), Trouble> {
        let answer = ask(self.api.clone()).await?;
        self.heard();
        compare(version.parse().ok(), answer)
    }

    /// Waits for the time of a probe, probes, and returns the result. Dropped and called again, it
    /// continues.
    pub(super) async fn answer(&mut self, version: &str) -> Result<bool, Trouble> {
        let (answer, asked_at) = match &mut self.asked {
            Some((answer, version)) => (answer, *version),
            None => {
                sleep_until(self.due).await;
                let answer = ask(self.api.clone()).boxed();
                let (answer, version) = self.asked.insert((answer, version.parse().ok()));
                (answer, *version)
            }
        };
        let answer = answer.await;
        self.asked = None;
        self.due = Instant::now() + PAUSE;
        match answer {
            Ok(answer) => {
                self.failures = 0;
                compare(asked_at, answer)?;
                Ok(true)
            }
            Err(_) if self.failures + 1 < ATTEMPTS => {
                self.failures += 1;
                Ok(false)
            }
            Err(trouble) => Err(trouble),
        }
    }
}

/// The server's newest version: with one object and without a version it reads from its storage.
async fn ask<T: Watchable>(api: Api<Watched<T>>) -> Result<Option<u64>, Trouble> {
    let params = ListParams {
        limit: Some(1),
        ..ListParams::default()
    };
    let page = timeout(PATIENCE, api.list(&params)).await;
    let page = page.map_err(|_| Trouble::Unanswered)??;
    let version = page.metadata.resource_version;
    Ok(version.and_then(|version| version.parse().ok()))
}

/// Versions that are not numbers cannot be compared.
fn compare(ours: Option<u64>, theirs: Option<u64>) -> Result<(), Trouble> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if theirs < ours => Err(Trouble::WentBack { ours, theirs }),
        _ => Ok(()),
    }
}

/// An API server that does not state its newest version.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct VersionError(Trouble);

/// Whether the server lists the kinds that every cluster has, one object of each.
///
/// # Errors
/// If it does not.
pub(super) async fn can_list(client: &Client) -> Result<(), VersionError> {
    let all = || client.clone();
    let asked = tokio::try_join!(
        ask::<Service>(Api::all(all())),
        ask::<EndpointSlice>(Api::all(all())),
        ask::<Node>(Api::all(all())),
        ask::<Namespace>(Api::all(all())),
    );
    asked.map(drop).map_err(VersionError)
}

/// The API server's newest versions of Services, EndpointSlices and Nodes, in this order, read from
/// its storage. Versions of an API server are numbers (KEP-5504).
///
/// # Errors
/// If it does not answer, or a version is not a number.
pub async fn newest_versions(client: &Client) -> Result<Vec<u64>, VersionError> {
    let all = || client.clone();
    let versions = tokio::try_join!(
        ask::<Service>(Api::all(all())),
        ask::<EndpointSlice>(Api::all(all())),
        ask::<Node>(Api::all(all())),
    );
    let (services, slices, nodes) = versions.map_err(VersionError)?;
    let versions: Option<Vec<u64>> = [services, slices, nodes].into_iter().collect();
    versions.ok_or(VersionError(Trouble::NoVersion))
}
