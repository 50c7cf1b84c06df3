// SPDX-License-Identifier: Apache-2.0

//! Servers that behave and misbehave, and probes of them.

use std::net::SocketAddr;
use std::time::Duration;

use portolan_health::Outcome;
use portolan_model::check::{Check, Probe};
use portolan_probe::{Context, Target, probe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// The timeout of probes that must end by it.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// A check that may take long.
pub(crate) fn check(probe: Probe) -> Check {
    let mut check = Check::new(probe);
    check.timers.timeout = Duration::from_secs(20);
    check
}

/// A check that ends soon.
pub(crate) fn short(probe: Probe) -> Check {
    let mut check = check(probe);
    check.timers.timeout = SHORT;
    check
}

/// Probes an address.
pub(crate) async fn run(check: &Check, address: SocketAddr) -> Outcome {
    probe(check, &Target::at(address), &Context::default()).await
}

/// Probes, and expects the failure to come with the timeout, not when the other side has ended.
pub(crate) async fn times_out(probe: Probe, address: SocketAddr) {
    let begin = Instant::now();
    let outcome = run(&short(probe), address).await;
    assert_eq!(outcome, Outcome::fail("not done within 500ms"));
    assert!(begin.elapsed() < SHORT * 40, "{:?}", begin.elapsed());
}

/// The reason of a failure.
#[track_caller]
pub(crate) fn failure(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Fail(reason) => reason,
        other => panic!("{other:?} is no failure"),
    }
}

/// Serves each connection by a function.
pub(crate) async fn serve<F>(behaviour: impl Fn(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A probe that has what it wants closes the connection.
            tokio::spawn(behaviour(stream));
        }
    });
    address
}

/// An address where nobody listens. Servers of other tests have another IP address, so that none takes the port.
pub(crate) async fn refusing() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// Takes connections and bytes, and never answers.
pub(crate) async fn silent() -> SocketAddr {
    serve(|mut stream| async move {
        let mut ignored = [0; 1_024];
        while stream.read(&mut ignored).await? > 0 {}
        Ok(())
    })
    .await
}

/// Answers the first bytes with others, and closes the connection.
pub(crate) async fn answering(answer: impl Into<Vec<u8>>) -> SocketAddr {
    let answer = answer.into();
    serve(move |mut stream| {
        let answer = answer.clone();
        async move {
            let mut question = [0; 4_096];
            let _ = stream.read(&mut question).await?;
            stream.write_all(&answer).await
        }
    })
    .await
}

/// Begins at once with an answer, one byte each 100 ms, and then repeats its last byte for ever.
pub(crate) async fn slow(answer: impl Into<Vec<u8>>) -> SocketAddr {
    let answer = answer.into();
    serve(move |mut stream| {
        let answer = answer.clone();
        async move {
            let last = answer.last().copied().unwrap_or(b'x');
            let bytes = answer.into_iter().chain(std::iter::repeat(last));
            for byte in bytes {
                stream.write_all(&[byte]).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        }
    })
    .await
}
