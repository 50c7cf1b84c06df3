// SPDX-License-Identifier: Apache-2.0

use std::future::pending;
use std::sync::Mutex;

use clap::Parser as _;
use portolan_auth::Reviewed;

use super::*;
use crate::args::Cli;

const PAUSE: Duration = Duration::from_millis(200);
const PERIOD: Duration = Duration::from_secs(600);
/// Just as long as nothing has a second turn.
const WHILE: Duration = Duration::from_millis(599_999);

fn good() -> anyhow::Result<Answer> {
    Ok(Answer { revoked: None })
}

fn revoked() -> anyhow::Result<Answer> {
    Ok(Answer {
        revoked: Some("gone".to_owned()),
    })
}

/// Tokens that are asked about, each with the time.
#[derive(Debug, Clone, Default)]
struct Asked(Arc<Mutex<Vec<(Duration, String)>>>);

impl Asked {
    fn note(&self, start: Instant, token: &str) {
        let asked = (start.elapsed(), token.to_owned());
        self.0.lock().unwrap().push(asked);
    }

    fn times(&self) -> Vec<u128> {
        let asked = self.0.lock().unwrap();
        asked.iter().map(|(at, _)| at.as_millis()).collect()
    }
}

/// Streams that go by so many tokens, and reviews of them for some time.
async fn review<F>(
    count: usize,
    time: Duration,
    answer: impl Fn(Arc<str>) -> F,
) -> (Vec<Reviewed>, Vec<u128>, ReviewMetrics)
where
    F: Future<Output = anyhow::Result<Answer>>,
{
    let reviews = Reviews::new(PERIOD);
    let watch = |token: String| reviews.watch("node", &token, 10 * PERIOD).unwrap();
    let streams: Vec<_> = (0..count).map(|n| watch(n.to_string())).collect();
    let (asked, metrics) = (Asked::default(), ReviewMetrics::default());
    let start = Instant::now();
    let ask = |token: Arc<str>| {
        asked.note(start, &token);
        answer(token)
    };
    let follow = follow(&reviews, ask, PAUSE, &metrics);
    assert!(timeout(time, follow).await.is_err());
    (streams, asked.times(), metrics)
}

fn is_revoked(stream: &Reviewed) -> bool {
    let mut task = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::pin!(stream.revoked()).poll(&mut task).is_ready()
}

#[tokio::test(start_paused = true)]
async fn the_rate_limits_reviews() {
    let answer = |_| async { good() };
    let (_streams, asked, metrics) = review(4_000, WHILE, answer).await;
    assert_eq!(asked.len(), 3_000);
    assert!(
        asked
            .windows(2)
            .all(|two| two[1] - two[0] >= PAUSE.as_millis())
    );
    assert_eq!(metrics.of(Verdict::Good).get(), 3_000);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_reviewed_once_in_a_period() {
    let answer = |_| async { good() };
    let (_streams, asked, _) = review(2, 2 * PERIOD + PERIOD / 2, answer).await;
    assert_eq!(asked, [0, 200, 600_000, 600_200, 1_200_000, 1_200_200]);
}

#[tokio::test(start_paused = true)]
async fn only_streams_with_a_revoked_token_end() {
    let answer = |token: Arc<str>| async move { if &*token == "1" { revoked() } else { good() } };
    let (streams, _, metrics) = review(3, WHILE, answer).await;
    let ended: Vec<_> = streams.iter().map(is_revoked).collect();
    assert_eq!(ended, [false, true, false]);
    assert_eq!(metrics.of(Verdict::Revoked).get(), 1);
}

/// After nonsense or no answer, the rate is lower, and no stream ends.
#[tokio::test(start_paused = true)]
async fn an_api_server_in_trouble_ends_no_stream() {
    let refused = |_| async { Err(anyhow!("forbidden")) };
    let (streams, asked, metrics) = review(3, WHILE, refused).await;
    assert_eq!(asked, [0, 1_000, 2_000]);
    assert!(!streams.iter().any(is_revoked));
    assert_eq!(metrics.of(Verdict::Unknown).get(), 3);
    let silent = |_| pending();
    let (streams, asked, _) = review(3, WHILE, silent).await;
    assert_eq!(asked, [0, 10_000, 20_000]);
    assert!(!streams.iter().any(is_revoked));
}

#[test]
fn reviews_require_tokens_and_an_api_server() {
    let parse = |args: &[&str]| {
        let args = [&["portolan-controller", "--token-review"], args].concat();
        Cli::try_parse_from(args).map(|cli| cli.run)
    };
    assert!(parse(&[]).is_err(), "without --token-issuer");
    let args = parse(&["--token-issuer=x"]).unwrap();
    assert!(args.review.validate(args.source).is_ok());
    assert_eq!(args.review.pause(), PAUSE);
    let args = parse(&["--token-issuer=x", "--source=file", "--file=x"]).unwrap();
    let error = args.review.validate(args.source).unwrap_err().to_string();
    assert!(error.contains("--source kubernetes"), "{error}");
    for bad in ["--token-review-period=0", "--token-review-qps=0"] {
        assert!(parse(&["--token-issuer=x", bad]).is_err(), "{bad}");
    }
}
