// SPDX-License-Identifier: Apache-2.0

//! A collector with TLS, whose certificate authority changes.

use std::path::PathBuf;
use std::time::SystemTime;

use portolan_tls::ServerFiles;
use portolan_tls::issue::{Authority, Issued};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::*;

/// A deadline that only a failure reaches.
const PATIENT: Duration = Duration::from_secs(30);

struct Files {
    directory: TempDir,
}

impl Files {
    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

fn valid() -> std::ops::Range<SystemTime> {
    let now = SystemTime::now();
    now - Duration::from_secs(60)..now + Duration::from_secs(3600)
}

fn authority() -> (Authority, Issued) {
    Authority::create("collectors", valid()).unwrap()
}

/// A receiver behind TLS that demands certificates of an authority.
async fn secure_receiver(files: &Files, authority: &Authority) -> (Receiver, String) {
    let (receiver, plain) = receiver().await;
    let Issued { cert, key } = authority.server(&["localhost"], valid()).unwrap();
    let config = ServerFiles {
        cert: files.write("server.crt", &cert),
        key: files.write("server.key", &key),
        client_ca: Some(files.write("clients.crt", authority.cert())),
        anonymous: false,
    };
    let acceptor = TlsAcceptor::from(config.open("test").unwrap().subscribe().borrow().clone());
    let listener = TcpListener::bind("localhost:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = plain.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, plain) = (acceptor.clone(), plain.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut plain = TcpStream::connect(plain).await?;
                copy_bidirectional(&mut stream, &mut plain).await
            });
        }
    });
    (receiver, format!("https://localhost:{port}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_go_to_a_collector_that_is_verified_only() {
    let files = Files {
        directory: tempfile::tempdir().unwrap(),
    };
    let (ours, _) = authority();
    let (_, other) = authority();
    let (receiver, endpoint) = secure_receiver(&files, &ours).await;
    let client = ours.client("agent", &[], valid()).unwrap();
    let ca = files.write("ca.crt", &other.cert);
    let args = OtlpArgs {
        otlp_ca: Some(ca),
        otlp_cert: Some(files.write("client.crt", &client.cert)),
        otlp_key: Some(files.write("client.key", &client.key)),
        ..args(&endpoint)
    };
    let (spans, credentials) = Spans::new(&args, &endpoint, PROGRAM).unwrap();
    let credentials = credentials.unwrap();
    let spans = Arc::new(spans);
    let send = |spans: &Arc<Spans>| {
        let now = Instant::now();
        spans.export(CHANGE, Span::new("change", now, now));
        let spans = Arc::clone(spans);
        tokio::task::spawn_blocking(move || spans.processor.force_flush())
    };
    // The certificate is another authority's.
    assert!(send(&spans).await.unwrap().is_err());
    assert!(receiver.0.lock().unwrap().is_empty());

    files.write("ca.crt", ours.cert());
    let ending = CancellationToken::new();
    tokio::spawn(credentials.follow(Duration::from_millis(20), ending.clone()));
    let began = Instant::now();
    while send(&spans).await.unwrap().is_err() {
        assert!(began.elapsed() < PATIENT, "the new authority is not used");
    }
    assert!(!receiver.0.lock().unwrap().is_empty());
    ending.cancel();
}

#[tokio::test]
async fn scheme_and_files_must_agree() {
    let files = Files {
        directory: tempfile::tempdir().unwrap(),
    };
    let ca = files.write("ca.crt", &authority().1.cert);
    let with = |endpoint: &str, ca: Option<PathBuf>| {
        let args = OtlpArgs {
            otlp_ca: ca,
            ..args(endpoint)
        };
        Spans::new(&args, endpoint, PROGRAM)
            .err()
            .map(|error| error.to_string())
    };
    let error = with("https://localhost:4317", None).unwrap();
    assert!(error.contains("https:// needs --otlp-ca"), "{error}");
    let error = with("http://localhost:4317", Some(ca.clone())).unwrap();
    assert!(error.contains("http:// excludes it"), "{error}");
    let missing = files.directory.path().join("none.crt");
    let error = with("https://localhost:4317", Some(missing)).unwrap();
    assert!(error.contains("none.crt"), "{error}");
    assert_eq!(with("https://localhost:4317", Some(ca)), None);
}
