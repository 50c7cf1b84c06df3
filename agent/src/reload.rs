// SPDX-License-Identifier: Apache-2.0

//! Reading of the files on request: `portolan-agent reload`, and SIGHUP.
//!
//! A request is answered when the kernel has what was read, with everything that is wrong.

use std::time::{Duration, Instant};

use anyhow::ensure;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use portolan_runtime::ANSWER_WITHIN;
use portolan_source::file::ReadRequests;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::args::Source;
use crate::ask::ask;
use crate::standalone::Reading;
use crate::subscribe::{HeldDeletions, HeldView, Report};

/// Longest time that a request waits for the kernel.
const PATIENCE: Duration = ANSWER_WITHIN;

/// Outcome of a reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Revision of the programmed table; `None` while some file has never been read.
    pub revision: Option<u64>,
    /// Problems of files and of their objects, whose last good versions stay in force. Deletions that are held back
    /// are one too: the kernel has what the files no longer say.
    pub problems: Vec<String>,
    /// Errors of programming.
    pub errors: Vec<String>,
}

/// Reason that nothing was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotReloaded {
    /// The source has no files.
    #[error("the table comes from controllers: there are no files to read")]
    NoFiles,
    /// The kernel was not programmed in time.
    #[error("the kernel was not programmed within {} s", PATIENCE.as_secs())]
    Late,
    /// The agent is ending.
    #[error("the agent is ending")]
    Ending,
}

/// Requests readings of the files, and waits for their outcome.
#[derive(Debug, Clone)]
pub struct Reload {
    source: Source,
    requests: ReadRequests,
    readings: watch::Sender<Reading>,
    reports: watch::Receiver<Option<Report>>,
    held: HeldView,
}

impl Reload {
    /// Requests for an agent whose reconciliations are in `reports`, and whose held deletions are in `held`.
    #[must_use]
    pub fn new(source: Source, reports: watch::Receiver<Option<Report>>, held: HeldView) -> Self {
        Self {
            source,
            requests: ReadRequests::default(),
            readings: watch::Sender::default(),
            reports,
            held,
        }
    }

    /// The requests, for the source.
    #[must_use]
    pub fn requests(&self) -> ReadRequests {
        self.requests.clone()
    }

    /// Receives the readings.
    #[must_use]
    pub fn readings(&self) -> watch::Sender<Reading> {
        self.readings.clone()
    }

    /// Reads the files, and waits until the kernel has what was read.
    ///
    /// # Errors
    /// If there are no files, or the kernel is not programmed in time.
    pub async fn run(&self) -> Result<Outcome, NotReloaded> {
        if self.source != Source::File {
            return Err(NotReloaded::NoFiles);
        }
        let done = timeout(PATIENCE, self.read()).await;
        done.map_err(|_| NotReloaded::Late)?
    }

    async fn read(&self) -> Result<Outcome, NotReloaded> {
        let mut readings = self.readings.subscribe();
        let number = self.requests.ask();
        let reading = readings.wait_for(|reading| reading.number >= number);
        let reading = reading.await.map_err(|_| NotReloaded::Ending)?.clone();
        let mut outcome = Outcome {
            revision: reading.revision,
            problems: reading.problems,
            errors: Vec::new(),
        };
        let Some(revision) = reading.revision else {
            return Ok(outcome);
        };
        let mut reports = self.reports.clone();
        let has = |report: &Option<Report>| {
            report
                .as_ref()
                .is_some_and(|report| report.revision >= revision)
        };
        let report = reports.wait_for(has).await;
        let report = report.map_err(|_| NotReloaded::Ending)?;
        if let Some(report) = &*report {
            outcome.revision = Some(report.revision);
            let errors = report.errors.iter();
            outcome.errors = errors.map(|(_, error)| error.clone()).collect();
        }
        // They were shown before the reading came.
        outcome.problems.extend(self.held.held().map(held_back));
        Ok(outcome)
    }

    /// A `POST` to `/debug/reload`, for those with a credential.
    pub fn actions(&self) -> Router {
        Router::new()
            .route("/reload", post(reload))
            .with_state(self.clone())
    }

    /// Reads the files at each SIGHUP.
    ///
    /// # Errors
    /// If the signal cannot be waited for.
    pub fn follow_signal(self) -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
        let mut hangups = signal(SignalKind::hangup())?;
        Ok(async move {
            while hangups.recv().await.is_some() {
                match self.run().await {
                    Ok(Outcome {
                        revision,
                        problems,
                        errors,
                    }) => {
                        let (problems, errors) = (problems.len(), errors.len());
                        tracing::info!(?revision, problems, errors, "SIGHUP: files were read");
                    }
                    Err(error) => tracing::warn!("SIGHUP: {error}"),
                }
            }
        })
    }
}

/// The problem that deletions are held back.
fn held_back(held: HeldDeletions) -> String {
    let (lost, of) = (held.loss.lost, held.loss.of);
    let end = held.until.map_or(String::new(), |until| {
        let remaining = until.saturating_duration_since(Instant::now());
        format!(", or wait for {} s", remaining.as_secs())
    });
    format!(
        "the deletion of {} of {} records ({} of {} endpoints) is held back: confirm it with \
         `portolanctl agent confirm` or a POST to /debug/confirm at the agent's socket{end}",
        lost.records, of.records, lost.endpoints, of.endpoints
    )
}

async fn reload(State(reload): State<Reload>) -> (StatusCode, Json<serde_json::Value>) {
    match reload.run().await {
        Ok(outcome) => (StatusCode::OK, Json(serde_json::json!(outcome))),
        Err(error) => {
            let status = match error {
                NotReloaded::NoFiles => StatusCode::CONFLICT,
                NotReloaded::Late => StatusCode::GATEWAY_TIMEOUT,
                NotReloaded::Ending => StatusCode::SERVICE_UNAVAILABLE,
            };
            (
                status,
                Json(serde_json::json!({ "error": error.to_string() })),
            )
        }
    }
}

/// Asks the agent behind a socket to read its files, and logs the outcome.
///
/// # Errors
/// If the agent does not answer, or anything is wrong.
pub async fn run(address: &str) -> anyhow::Result<()> {
    let outcome: Outcome = ask(address, Method::POST, "/debug/reload", Vec::new()).await?;
    for text in outcome.problems.iter().chain(&outcome.errors) {
        tracing::error!("{text}");
    }
    let wrong = outcome.problems.len() + outcome.errors.len();
    ensure!(
        wrong == 0 && outcome.revision.is_some(),
        "{wrong} errors: the last good version of what is wrong stays in force"
    );
    tracing::info!(
        revision = outcome.revision,
        "the kernel has what the files say"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::header;
    use axum::response::Response;
    use portolan_runtime::{Connections, serve_http};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn report(revision: u64, errors: &[&str]) -> Option<Report> {
        Some(Report {
            epoch: 0,
            revision,
            duration: Duration::ZERO,
            errors: errors.iter().map(|e| (None, (*e).to_owned())).collect(),
            checked: 0,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_follows_the_kernel() {
        let (reports, receiver) = watch::channel(report(1, &["old"]));
        let reload = Reload::new(Source::File, receiver, HeldView::default());
        let readings = reload.readings();
        let asked = tokio::spawn({
            let reload = reload.clone();
            async move { reload.run().await }
        });
        tokio::task::yield_now().await;
        readings.send_replace(Reading {
            number: 1,
            revision: Some(2),
            problems: vec!["bad".to_owned()],
        });
        tokio::task::yield_now().await;
        assert!(!asked.is_finished(), "revision 2 is not programmed");
        reports.send_replace(report(2, &["refused"]));
        let expected = Outcome {
            revision: Some(2),
            problems: vec!["bad".to_owned()],
            errors: vec!["refused".to_owned()],
        };
        assert_eq!(asked.await.unwrap(), Ok(expected));
        // A reading that was requested before is not taken for this one's.
        assert_eq!(reload.run().await, Err(NotReloaded::Late));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kernel_that_is_late_is_told_before_the_connection_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let (_reports, receiver) = watch::channel(None);
        // Nothing reads its files.
        let reload = Reload::new(Source::File, receiver, HeldView::default());
        let router = Router::new().nest("/debug", reload.actions());
        let ending = CancellationToken::new();
        let connections = Connections::default();
        tokio::spawn(serve_http(listener, router, connections, ending.clone()));
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        let (line, rest) = (b"POST /debug/reload HTTP/1.1\r\n", b"Host: x\r\n\r\n");
        stream.write_all(line).await.unwrap();
        // The connection is older than the request.
        tokio::time::sleep(Duration::from_secs(1)).await;
        stream.write_all(rest).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let late = NotReloaded::Late.to_string();
        assert!(answer.contains(&late), "{answer}");
        ending.cancel();
    }

    #[tokio::test]
    async fn controllers_have_no_files() {
        let (_reports, receiver) = watch::channel(None);
        let reload = Reload::new(Source::Controller, receiver, HeldView::default());
        assert_eq!(reload.run().await, Err(NotReloaded::NoFiles));
    }

    #[tokio::test]
    async fn the_command_asks_over_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let address = format!("unix://{}", path.display());
        let error = run(&address).await.unwrap_err();
        assert!(
            format!("{error:#}").contains("no agent answers"),
            "{error:#}"
        );
        let (_reports, receiver) = watch::channel(None);
        let reload = Reload::new(Source::Controller, receiver, HeldView::default());
        let actions = reload.actions();
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        // As the agent's listener does.
        let close = || [(header::CONNECTION, "close")];
        let closing =
            axum::middleware::map_response(
                move |response: Response| async move { (close(), response) },
            );
        let router = Router::new().nest("/debug", actions).layer(closing);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let error = run(&address).await.unwrap_err();
        assert!(
            format!("{error:#}").contains("from controllers"),
            "{error:#}"
        );
        assert!(run("/run/x").await.is_err());
    }
}
