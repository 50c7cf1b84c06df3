//! Asks the API server now and then whether it still takes the tokens that streams go by.
//!
//! In the background and one at a time: agents are let in without it. A stream that ends by it takes
//! nothing from its node, where the kernel goes on with the last table while the agent tries again.
//! So an API server that says no to all tokens for a while delays changes; it ends no connection.

mod answer;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use kube::Client;
use portolan_serve::{Reviews, Verdict};
use portolan_source::kubernetes;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep_until, timeout};

use crate::args::{Args, Source};
use answer::Answer;

/// How long one review may take. Authenticators that ask others in turn have 10 s by default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long nothing is asked when there was no answer of use: the API server may have too much to do.
const TROUBLE: Duration = Duration::from_secs(1);

/// Whether tokens are reviewed.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ReviewArgs {
    /// Ask the API server in the background whether it still takes the tokens that agents showed, and
    /// end the streams of those that it does not: of deleted pods, above all. Needs --source
    /// kubernetes and permission to create tokenreviews.authentication.k8s.io
    /// (system:auth-delegator).
    #[arg(
        long,
        env = "PORTOLAN_TOKEN_REVIEW",
        requires_if("true", "token_issuer")
    )]
    token_review: bool,

    /// How often a token is reviewed at most, in seconds.
    #[arg(long, env = "PORTOLAN_TOKEN_REVIEW_PERIOD", default_value = "600",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    token_review_period: u64,

    /// How many reviews the API server is asked for in a second at most, by each controller.
    #[arg(long, env = "PORTOLAN_TOKEN_REVIEW_QPS", default_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=1_000))]
    token_review_qps: u32,
}

/// What asks, and what says whose turn it is.
pub(crate) struct Reviewer {
    pub(crate) reviews: Arc<Reviews>,
    client: Client,
    audience: String,
    /// Between two reviews.
    pause: Duration,
    metrics: ReviewMetrics,
}

/// How many reviews there were, by what came of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReviewMetrics(Family<[(&'static str, &'static str); 1], Counter>);

impl ReviewMetrics {
    fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        let help = "Reviews of tokens by the API server, by result";
        registry.register("token_reviews", help, this.0.clone());
        for verdict in [Verdict::Good, Verdict::Revoked, Verdict::Unknown] {
            // There from the start.
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
        self.0.get_or_create(&[("result", result)])
    }
}

impl ReviewArgs {
    /// Whether the source has an API server to ask.
    pub(crate) fn validate(&self, source: Source) -> anyhow::Result<()> {
        ensure!(
            !self.token_review || source == Source::Kubernetes,
            "--token-review needs --source kubernetes: an API server must be asked"
        );
        Ok(())
    }

    fn pause(&self) -> Duration {
        Duration::from_secs(1) / self.token_review_qps.max(1)
    }
}

/// What reviews the tokens, if the flags say so.
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
        reviews: Reviews::new(Duration::from_secs(flags.token_review_period)),
        client: client.context("--token-review")?,
        audience: audience.to_owned(),
        pause: flags.pause(),
        metrics: ReviewMetrics::register(registry),
    }))
}

impl Reviewer {
    /// Reviews until it is dropped.
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
                // Not parsed by the client, which would log what it cannot parse: the answer has the
                // token in it.
                let answer = client.request_text(request).await;
                let text = answer.map_err(|error| error.to_string().replace(&*token, "TOKEN"))?;
                answer::read(&text, &audience)
            }
        };
        follow(&reviews, ask, pause, &metrics).await;
    }
}

/// Asks for one review after the other, each a pause after the one before began: never more than the
/// flag allows, and fewer where the API server is slow.
async fn follow<F>(
    reviews: &Reviews,
    ask: impl Fn(Arc<str>) -> F,
    pause: Duration,
    metrics: &ReviewMetrics,
) where
    F: Future<Output = Result<Answer, String>>,
{
    let mut said = None;
    loop {
        let due = reviews.next().await;
        let began = Instant::now();
        let late = || Err(format!("no answer in {} seconds", TIMEOUT.as_secs()));
        let answer = timeout(TIMEOUT, ask(due.token())).await;
        let answer = answer.unwrap_or_else(|_| late());
        let verdict = answer.as_ref().map_or(Verdict::Unknown, Answer::verdict);
        metrics.of(verdict).inc();
        let is_news = reviews.report(&due, verdict);
        let mut next = began + pause;
        match answer {
            Ok(answer) => {
                if said.take().is_some() {
                    tracing::info!("tokens can be reviewed again");
                }
                if is_news {
                    let (node, reason) = (due.node(), answer.revoked);
                    tracing::info!(node, ?verdict, reason, "review of a token");
                }
            }
            Err(reason) => {
                next = next.max(began + TROUBLE);
                if said.as_ref() != Some(&reason) {
                    tracing::warn!(reason, "no reviews of tokens; trying again");
                }
                said = Some(reason);
            }
        }
        sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests;
