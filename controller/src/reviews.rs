// SPDX-License-Identifier: Apache-2.0

//! Periodic reviews by the API server of the tokens that streams were authenticated with.
//!
//! Reviews run in the background, one at a time; agents are admitted without them. The end of a stream
//! removes nothing from its node: the kernel keeps the last table while the agent reconnects. An API
//! server that rejects all tokens for a while therefore delays changes, but ends no connection.

mod answer;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use kube::Client;
use portolan_auth::{Reviews, Verdict};
use portolan_runtime::duration_within;
use portolan_source::kubernetes;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep_until, timeout};

use crate::args::{Args, Source};
use answer::Answer;

/// Time limit of one review. Authenticators that call webhooks allow them 10 s by default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Pause after a review without a usable answer: the API server may be overloaded.
const TROUBLE: Duration = Duration::from_secs(1);

/// Flags of token reviews.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "TLS and identity")]
pub(crate) struct ReviewArgs {
    /// Let the API server review agents' tokens in the background, and end the streams whose token it
    /// no longer accepts, such as tokens of deleted pods. Needs --source kubernetes and permission to
    /// create tokenreviews.authentication.k8s.io (system:auth-delegator).
    #[arg(
        long,
        env = "PORTOLAN_TOKEN_REVIEW",
        requires_if("true", "token_issuer")
    )]
    token_review: bool,

    /// Shortest time between two reviews of a token.
    #[arg(long, env = "PORTOLAN_TOKEN_REVIEW_PERIOD", default_value = "10m",
        value_parser = duration_within(Duration::from_secs(1), Duration::from_secs(86_400)))]
    token_review_period: Duration,

    /// Limit of reviews a second, for each controller.
    #[arg(long, env = "PORTOLAN_TOKEN_REVIEW_QPS", default_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    token_review_qps: u32,
}

/// The task that reviews tokens.
pub(crate) struct Reviewer {
    pub(crate) reviews: Arc<Reviews>,
    client: Client,
    audience: String,
    /// Pause between two reviews.
    pause: Duration,
    metrics: ReviewMetrics,
}

/// Label of a review's result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Counts of reviews by result.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReviewMetrics(Family<ResultLabel, Counter>);

impl ReviewMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        let help = "Reviews of tokens by the API server, by result";
        registry.register("token_reviews", help, this.0.clone());
        for verdict in [Verdict::Good, Verdict::Revoked, Verdict::Unknown] {
            // Exported from the start.
            drop(this.of(verdict));
        }
        this
    }

    fn of(&self, verdict: Verdict) -> impl std::ops::Deref<Target = Counter> {
        let result = match verdict {
            Verdict::Good => "good",
            Verdict::Revoked => "revoked",
            Verdict::Unknown => "unknown",
        };
        self.0.get_or_create(&ResultLabel { result })
    }
}

impl ReviewArgs {
    /// Checks that the source has an API server.
    pub(crate) fn validate(&self, source: Source) -> anyhow::Result<()> {
        ensure!(
            !self.token_review || source == Source::Kubernetes,
            "--token-review needs --source kubernetes, for its API server"
        );
        Ok(())
    }

    fn pause(&self) -> Duration {
        Duration::from_secs(1) / self.token_review_qps.max(1)
    }
}

/// Opens the reviewer, if the flags ask for it.
pub(crate) async fn open(
    args: &Args,
    audience: &str,
    registry: &mut Registry,
) -> anyhow::Result<Option<Reviewer>> {
    let flags = &args.review;
    flags.validate(args.source)?;
    if !flags.token_review {
        return Ok(None);
    }
    let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
    let client = kubernetes::client(kubeconfig, context).await;
    Ok(Some(Reviewer {
        reviews: Reviews::new(flags.token_review_period),
        client: client.context("--token-review")?,
        audience: audience.to_owned(),
        pause: flags.pause(),
        metrics: ReviewMetrics::register(registry),
    }))
}

impl Reviewer {
    /// Reviews tokens until it is dropped.
    pub(crate) async fn run(self) {
        let Self {
            reviews,
            client,
            audience,
            pause,
            metrics,
        } = self;
        let ask = move |token: Arc<str>| {
            let (client, audience) = (client.clone(), audience.clone());
            async move {
                let request = answer::request(&token, &audience);
                // Not parsed by the client: it logs answers that it cannot parse, and the answer
                // contains the token.
                let answer = client.request_text(request).await;
                let without_token =
                    |error: kube::Error| error.to_string().replace(&*token, "TOKEN");
                let text = answer.map_err(|error| anyhow!(without_token(error)))?;
                Ok(answer::read(&text, &audience)?)
            }
        };
        follow(&reviews, ask, pause, &metrics).await;
    }
}

/// Requests one review after the other. Each begins at least a pause after the start of the last one,
/// so the flag's rate is an upper bound, and a slow API server lowers it.
async fn follow<F>(
    reviews: &Reviews,
    ask: impl Fn(Arc<str>) -> F,
    pause: Duration,
    metrics: &ReviewMetrics,
) where
    F: Future<Output = anyhow::Result<Answer>>,
{
    let mut last_reason = None;
    loop {
        let due = reviews.next().await;
        let began = Instant::now();
        let late = || Err(anyhow!("no answer in {TIMEOUT:?}"));
        let answer = timeout(TIMEOUT, ask(due.token())).await;
        let answer = answer.unwrap_or_else(|_| late());
        let verdict = answer.as_ref().map_or(Verdict::Unknown, Answer::verdict);
        metrics.of(verdict).inc();
        let is_news = reviews.report(&due, verdict);
        let mut next = began + pause;
        match answer {
            Ok(answer) => {
                if last_reason.take().is_some() {
                    tracing::info!("token reviews work again");
                }
                if is_news {
                    let (node, reason) = (due.node(), answer.revoked);
                    tracing::info!(node, ?verdict, reason, "token reviewed");
                }
            }
            Err(error) => {
                let reason = format!("{error:#}");
                next = next.max(began + TROUBLE);
                if last_reason.as_ref() != Some(&reason) {
                    tracing::warn!(reason, "token review failed; retrying");
                }
                last_reason = Some(reason);
            }
        }
        sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests;
