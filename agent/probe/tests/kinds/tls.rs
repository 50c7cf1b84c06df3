// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use portolan_health::Outcome;
use portolan_model::check::{HttpProbe, HttpVersion, Probe, TlsProbe, Verify};
use portolan_tls::issue::{Authority, Issued};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

use crate::rig::{answering, check, failure, refusing, run, serve, silent, slow, times_out};

const DAY: Duration = Duration::from_secs(86_400);
const BODY: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The server names and the requests that a server was sent.
type Seen = Arc<Mutex<Vec<(Option<String>, String)>>>;

struct Rig {
    directory: tempfile::TempDir,
    authority: Authority,
}

impl Rig {
    fn new() -> Self {
        let now = SystemTime::now();
        let (authority, issued) = Authority::create("test", now - DAY..now + 100 * DAY).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca"), issued.cert).unwrap();
        Self {
            directory,
            authority,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    }

    fn issue(&self, days: u32) -> Issued {
        let now = SystemTime::now();
        let valid = now - DAY..now + DAY * days + DAY / 2;
        self.authority
            .server(&["www.example.org", "127.0.0.1", "2001:db8::1"], valid)
            .unwrap()
    }

    /// A server whose certificate is valid for some more days.
    async fn server(&self, days: u32, wants_certificate: bool) -> SocketAddr {
        self.noting_server(days, wants_certificate, Seen::default())
            .await
    }

    /// The same, which notes what it is asked.
    async fn noting_server(&self, days: u32, wants_certificate: bool, seen: Seen) -> SocketAddr {
        let issued = self.issue(days);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match wants_certificate {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = rustls::RootCertStore::empty();
                roots.add(der(self.authority.cert())).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        let mut config = builder
            .with_single_cert(vec![der(&issued.cert)], key)
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        serve(move |stream| {
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
            async move {
                let mut stream = acceptor.accept(stream).await?;
                let name = stream.get_ref().1.server_name().map(str::to_owned);
                let mut request = [0; 1_024];
                let length = stream.read(&mut request).await?;
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                seen.lock().unwrap().push((name, request));
                stream.write_all(BODY).await?;
                stream.shutdown().await
            }
        })
        .await
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

async fn told(probe: TlsProbe, address: SocketAddr) -> Outcome {
    run(&check(Probe::Tls(probe)), address).await
}

#[tokio::test]
async fn a_certificate_is_verified_if_asked() {
    let rig = Rig::new();
    let server = rig.server(30, false).await;
    assert_eq!(told(TlsProbe::default(), server).await, Outcome::pass());
    let mut probe = TlsProbe {
        verify: Verify::Ca(rig.path("ca")),
        ..TlsProbe::default()
    };
    assert_eq!(
        told(probe.clone(), server).await,
        Outcome::pass(),
        "by its address"
    );
    probe.server_name = Some("www.example.org".to_owned());
    assert_eq!(told(probe.clone(), server).await, Outcome::pass());
    probe.server_name = Some("other.example.org".to_owned());
    let outcome = told(probe.clone(), server).await;
    assert!(
        failure(&outcome).starts_with("TLS: invalid peer certificate"),
        "{outcome:?}"
    );
    let other = Rig::new();
    probe.verify = Verify::Ca(other.path("ca"));
    let outcome = told(probe.clone(), server).await;
    assert!(
        failure(&outcome).starts_with("TLS: invalid peer certificate"),
        "{outcome:?}"
    );
    let pipe = other.path("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    probe.verify = Verify::Ca(pipe.clone());
    let outcome = told(probe.clone(), server).await;
    // A reader that waits for a writer would keep the test from its end.
    let both_ends = std::fs::File::options().read(true).write(true).open(&pipe);
    drop(both_ends.unwrap());
    let expected = format!("{pipe}: not a regular file");
    assert_eq!(outcome, Outcome::no_verdict(expected));
    probe.verify = Verify::Ca(other.path("none"));
    let outcome = told(probe, server).await;
    assert!(matches!(outcome, Outcome::NoVerdict(_)), "{outcome:?}");
}

#[tokio::test]
async fn the_days_of_a_certificate_count() {
    let rig = Rig::new();
    let server = rig.server(10, false).await;
    let days = |minimum_days_valid| TlsProbe {
        minimum_days_valid,
        ..TlsProbe::default()
    };
    assert_eq!(told(days(10), server).await, Outcome::pass());
    let outcome = told(days(11), server).await;
    assert_eq!(
        failure(&outcome),
        "the certificate is valid for 10 more days, not 11"
    );
}

#[tokio::test]
async fn an_https_server_is_asked_with_our_certificate() {
    let rig = Rig::new();
    let server = rig.server(30, true).await;
    let now = SystemTime::now();
    let own = rig
        .authority
        .client("probe", &[], now - DAY..now + DAY)
        .unwrap();
    std::fs::write(rig.path("cert"), own.cert).unwrap();
    std::fs::write(rig.path("key"), own.key).unwrap();
    let mut probe = HttpProbe {
        host: Some("www.example.org:8443".to_owned()),
        body_regex: Some("^ok$".to_owned()),
        tls: Some(TlsProbe {
            verify: Verify::Ca(rig.path("ca")),
            certificate: Some(rig.path("cert")),
            key: Some(rig.path("key")),
            ..TlsProbe::default()
        }),
        ..HttpProbe::default()
    };
    let https = |probe: &HttpProbe| check(Probe::Http(Box::new(probe.clone())));
    assert_eq!(run(&https(&probe), server).await, Outcome::pass());
    probe.tls = Some(TlsProbe::default());
    let outcome = run(&https(&probe), server).await;
    assert!(matches!(outcome, Outcome::Fail(_)), "{outcome:?}");
    probe.version = HttpVersion::Http2;
    let outcome = run(&https(&probe), server).await;
    assert!(failure(&outcome).starts_with("TLS"), "{outcome:?}");
}

#[tokio::test]
async fn a_host_may_be_an_address_with_a_port_and_without() {
    let rig = Rig::new();
    for (host, header, name) in [
        ("2001:db8::1", "[2001:db8::1]", None),
        ("[2001:db8::1]", "[2001:db8::1]", None),
        ("[2001:db8::1]:8443", "[2001:db8::1]:8443", None),
        ("127.0.0.1", "127.0.0.1", None),
        ("127.0.0.1:8443", "127.0.0.1:8443", None),
        (
            "www.example.org:8443",
            "www.example.org:8443",
            Some("www.example.org"),
        ),
    ] {
        let seen = Seen::default();
        let server = rig.noting_server(30, false, Arc::clone(&seen)).await;
        let probe = HttpProbe {
            host: Some(host.to_owned()),
            tls: Some(TlsProbe {
                verify: Verify::Ca(rig.path("ca")),
                ..TlsProbe::default()
            }),
            ..HttpProbe::default()
        };
        let outcome = run(&check(Probe::Http(Box::new(probe))), server).await;
        assert_eq!(outcome, Outcome::pass(), "{host}");
        let seen = seen.lock().unwrap();
        let [(server_name, request)] = &seen[..] else {
            panic!("{host}: {seen:?}");
        };
        assert_eq!(server_name.as_deref(), name, "{host}");
        let line = format!("\r\nhost: {header}\r\n");
        assert!(request.contains(&line), "{host}: {request}");
    }
}

#[tokio::test]
async fn slow_silent_refusing_and_lying_servers_fail() {
    let probe = || Probe::Tls(TlsProbe::default());
    times_out(probe(), silent().await).await;
    // The header of a handshake record of 16 KiB.
    times_out(probe(), slow([22, 3, 3, 0x40, 0, 2]).await).await;
    let refused = told(TlsProbe::default(), refusing().await).await;
    assert_eq!(failure(&refused), "connection refused");
    let outcome = told(
        TlsProbe::default(),
        answering("SSH-2.0-OpenSSH_9.2\r\n").await,
    )
    .await;
    assert!(failure(&outcome).starts_with("TLS: "), "{outcome:?}");
    let outcome = told(TlsProbe::default(), answering("").await).await;
    assert!(matches!(outcome, Outcome::Fail(_)), "{outcome:?}");
}
