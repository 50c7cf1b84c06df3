// SPDX-License-Identifier: Apache-2.0

//! Public keys of the token issuer, fetched from the API server.
//!
//! Keys are fetched every hour, and when a token names an unknown key. The latter is limited to once in
//! a few seconds, since any client can invent such tokens.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use portolan_auth::{KeySet, KeyWanted};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::codegen::http::Request;

/// Path of the keys at an API server. Every ServiceAccount may read it.
const PATH: &str = "/openid/v1/jwks";

/// Times of fetches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Period of regular fetches.
    pub(crate) period: Duration,
    /// Shortest time between two fetches.
    pub(crate) pause: Duration,
    /// Time limit of one fetch.
    pub(crate) patience: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(3_600),
            pause: Duration::from_secs(10),
            patience: Duration::from_secs(10),
        }
    }
}

/// The request for the keys.
pub(crate) fn request() -> Request<Vec<u8>> {
    let mut request = Request::new(Vec::new());
    *request.uri_mut() = tonic::codegen::http::Uri::from_static(PATH);
    request
}

/// Keeps the keys up to date until it is dropped. Failed fetches and unusable keys change nothing.
pub(crate) async fn follow<F>(
    fetch: impl Fn() -> F,
    keys: watch::Sender<Arc<KeySet>>,
    wanted: KeyWanted,
    pace: Pace,
) where
    F: Future<Output = anyhow::Result<String>>,
{
    let mut last_reason = None;
    loop {
        let began = Instant::now();
        let fetched = timeout_at(began + pace.patience, fetch()).await;
        let fetched = fetched.unwrap_or_else(|_| Err(anyhow!("no answer in {:?}", pace.patience)));
        match fetched.and_then(|text| parse(&text)) {
            Ok(new) => {
                if last_reason.take().is_some() {
                    tracing::info!("token keys fetched again");
                }
                keys.send_replace(Arc::new(new));
                // Ends early if a token names an unknown key.
                let _ = timeout_at(began + pace.period, wanted.notified()).await;
            }
            Err(error) => {
                let reason = format!("{error:#}");
                if last_reason.as_ref() != Some(&reason) {
                    tracing::warn!(reason, "cannot fetch token keys from {PATH}; retrying");
                }
                last_reason = Some(reason);
            }
        }
        sleep_until(began + pace.pause).await;
    }
}

fn parse(text: &str) -> anyhow::Result<KeySet> {
    Ok(KeySet::parse(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "alg": "ES256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

    #[tokio::test(start_paused = true)]
    async fn keys_are_fetched_every_hour_and_on_demand_within_limits() {
        let (keys, mut seen) = watch::channel(Arc::new(KeySet::default()));
        let (wanted, fetched) = (KeyWanted::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&fetched);
        let fetch = move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    // An API server that accepts the request and never answers.
                    0 => std::future::pending().await,
                    1 => Ok("{}".to_owned()),
                    _ => Ok(KEYS.to_owned()),
                }
            }
        };
        let start = Instant::now();
        let task = tokio::spawn(follow(fetch, keys, Arc::clone(&wanted), Pace::default()));
        seen.changed().await.unwrap();
        // Two failures, each followed by the pause.
        assert_eq!(start.elapsed().as_secs(), 20);
        seen.changed().await.unwrap();
        assert_eq!(start.elapsed().as_secs(), 20 + 3_600);
        for number in 1..=5 {
            wanted.notify_one();
            seen.changed().await.unwrap();
            assert_eq!(start.elapsed().as_secs(), 20 + 3_600 + number * 10);
        }
        assert_eq!(fetched.load(Ordering::Relaxed), 9);
        task.abort();
    }
}
