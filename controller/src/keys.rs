//! The public keys of the token issuer, asked from the API server.
//!
//! Every hour, and when a token comes that was signed with a key that is not known: not more often
//! than every few seconds, since anybody can make up such tokens.

use std::sync::Arc;
use std::time::Duration;

use portolan_auth::{KeySet, KeyWanted};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::codegen::http::Request;

/// Where an API server has them; every ServiceAccount may read it.
const PATH: &str = "/openid/v1/jwks";

/// How often keys are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// When nothing is wrong.
    pub(crate) period: Duration,
    /// At most, whatever is wrong.
    pub(crate) pause: Duration,
    /// How long one answer may take.
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

/// What is asked.
pub(crate) fn request() -> Request<Vec<u8>> {
    let mut request = Request::new(Vec::new());
    *request.uri_mut() = tonic::codegen::http::Uri::from_static(PATH);
    request
}

/// Keeps the keys new, until it is dropped. What cannot be fetched or used changes nothing.
pub(crate) async fn follow<F>(
    fetch: impl Fn() -> F,
    keys: watch::Sender<Arc<KeySet>>,
    wanted: KeyWanted,
    pace: Pace,
) where
    F: Future<Output = Result<String, String>>,
{
    let mut said = None;
    loop {
        let began = Instant::now();
        let fetched = timeout_at(began + pace.patience, fetch()).await;
        let fetched = fetched.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        match fetched.and_then(|text| KeySet::parse(text.as_bytes())) {
            Ok(new) => {
                if said.take().is_some() {
                    tracing::info!("the keys of tokens can be had again");
                }
                keys.send_replace(Arc::new(new));
                // Being asked for keys is the other reason to look again; both are good.
                let _ = timeout_at(began + pace.period, wanted.notified()).await;
            }
            Err(reason) => {
                if said.as_ref() != Some(&reason) {
                    tracing::warn!(reason, "no keys of tokens from {PATH}; trying again");
                }
                said = Some(reason);
            }
        }
        sleep_until(began + pace.pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "1", "alg": "ES256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

    #[tokio::test(start_paused = true)]
    async fn keys_are_fetched_by_the_hour_and_on_demand_but_not_too_often() {
        let (keys, mut seen) = watch::channel(Arc::new(KeySet::default()));
        let (wanted, fetched) = (KeyWanted::default(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&fetched);
        let fetch = move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    // An API server that takes the request and never answers.
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
