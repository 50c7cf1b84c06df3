// SPDX-License-Identifier: Apache-2.0

//! Tests of edges that show a ServiceAccount token, over TLS.

use std::fs;
use std::time::SystemTime;

use portolan_auth::testing::{Signer, edge_claims, edge_issuer, unix_now};
use portolan_auth::{Authentication, Issuers, TokenVerifier};
use portolan_subscription::{Dialer, Identity, Target, Token};
use portolan_tls::ServerFiles;
use portolan_tls::issue::Authority;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};

use super::*;

const EU: &str = "https://eu.example";
const HOUR: Duration = Duration::from_secs(3_600);

/// A replica with TLS that takes tokens of clusters `eu` and `us`, and the files of an edge.
struct Rig {
    replica: Replica,
    of_us: mpsc::Receiver<edge::EdgeStream>,
    eu: Signer,
    us: Signer,
    dir: TempDir,
}

impl Rig {
    async fn start(grace: Duration) -> Self {
        let (eu, us) = (Signer::elliptic("eu"), Signer::elliptic("us"));
        let issuers = [
            edge_issuer("eu", EU, &[&eu]),
            edge_issuer("us", "https://us.example", &[&us]),
        ];
        let issuers = watch::channel(Arc::new(Issuers::from_iter(issuers))).1;
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let authority = Authority::create("test", now - HOUR..now + HOUR).unwrap().0;
        let issued = authority.server(&["127.0.0.1"], now - HOUR..now + HOUR);
        let issued = issued.unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("ca.crt"), authority.cert()).unwrap();
        fs::write(path("server.crt"), &issued.cert).unwrap();
        fs::write(path("server.key"), &issued.key).unwrap();
        let files = ServerFiles {
            cert: path("server.crt"),
            key: path("server.key"),
            client_ca: None,
            anonymous: true,
        };
        let tls = files.open("tls").unwrap().subscribe();
        let config = ServeConfig {
            clusters: ServedClusters::new(["eu".into(), "us".into()]),
            authentication: Authentication::Required(Some(Arc::new(TokenVerifier::of(issuers)))),
            credential_grace: grace,
            ..ServeConfig::default()
        };
        let replica = Replica::serve("127.0.0.1:0", true, config, Some(tls)).await;
        let of_us = replica.seats.open(&"us".into());
        Self {
            replica,
            of_us,
            eu,
            us,
            dir,
        }
    }

    /// The security of an edge with the authority and a token alone.
    fn security(&self) -> Security {
        let identity = Identity {
            prefix: "federation-",
            dir: None,
            ca: Some(self.dir.path().join("ca.crt")),
            cert: None,
            key: None,
            server_name: None,
            plaintext: false,
            token: Token::File(self.dir.path().join("token")),
        };
        identity.open("federation_tls").unwrap().0
    }

    fn write_token(&self, token: &str) {
        fs::write(self.dir.path().join("token"), token).unwrap();
    }

    fn upstream(&self) -> Uri {
        let address = format!("https://{}", self.replica.address);
        address.parse().unwrap()
    }

    /// The stream of a client with this Hello and the token of the file.
    async fn open(
        &self,
        cluster: &str,
        name: &str,
    ) -> Result<tonic::Streaming<v1::CentreMessage>, Status> {
        let target = Target {
            endpoint: self.upstream(),
            address: self.replica.address,
        };
        let mut dialer = Dialer::new(self.security());
        let (channel, token) = dialer.connect(&target).await.unwrap();
        let hello = v1::EdgeHello {
            version: 1,
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            ..v1::EdgeHello::default()
        };
        let message = Some(Message::Hello(hello));
        let messages = tokio_stream::iter([v1::EdgeMessage { message }]);
        // The stream stays open.
        let mut request = Request::new(messages.chain(tokio_stream::pending()));
        let token = token.unwrap();
        request.metadata_mut().insert("authorization", token);
        let mut client = FederationClient::new(channel);
        client.sync(request).await.map(tonic::Response::into_inner)
    }
}

#[tokio::test]
async fn an_edge_with_a_token_sends_the_objects_of_its_cluster() {
    let mut rig = Rig::start(HOUR).await;
    let mut claims = edge_claims(EU, "edge-1");
    claims["exp"] = json!(unix_now() - 60);
    rig.write_token(&rig.eu.sign(&claims));
    let security = rig.security();
    let edge = Edge::dial(vec![rig.upstream()], security, "edge-1", None, 7);
    edge.send(put(0..10)).await;
    edge.send(Event::Synced).await;
    // The expired token is refused, and the file is read again.
    timeout(PATIENCE, async {
        while edge.stats.failures() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(rig.replica.stats.edge(), None);
    rig.write_token(&rig.eu.sign(&edge_claims(EU, "edge-1")));
    rig.replica.until(10).await;
    assert_eq!(rig.replica.stats.edge().as_deref(), Some("edge-1"));
    assert!(rig.of_us.try_recv().is_err(), "another cluster's seat");
}

#[tokio::test]
async fn a_token_opens_no_other_cluster_and_no_other_name() {
    let mut rig = Rig::start(HOUR).await;
    rig.write_token(&rig.eu.sign(&edge_claims(EU, "edge-1")));
    for (cluster, name, expected) in [
        ("us", "edge-1", "cluster: yours is \"eu\""),
        ("eu", "edge-2", "name: you are the edge \"edge-1\""),
    ] {
        let refused = rig.open(cluster, name).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert_eq!(refused.message(), expected);
    }
    // Nor does one of `us` with the issuer of `eu`.
    rig.write_token(&rig.us.sign(&edge_claims(EU, "edge-1")));
    for cluster in ["eu", "us"] {
        let refused = rig.open(cluster, "edge-1").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    assert!(rig.of_us.try_recv().is_err());
    assert_eq!(rig.replica.stats.edge(), None);
    rig.write_token(&rig.us.sign(&edge_claims("https://us.example", "edge-1")));
    let _answers = rig.open("us", "edge-1").await.unwrap();
    let stream = timeout(PATIENCE, rig.of_us.recv()).await.unwrap().unwrap();
    assert_eq!(&*stream.edge, "edge-1");
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    // Clocks may differ by 30 s, so that the token is accepted, and its stream ends some seconds later.
    let rig = Rig::start(Duration::from_secs(12)).await;
    let mut claims = edge_claims(EU, "edge-1");
    claims["exp"] = json!(unix_now() - 6);
    rig.write_token(&rig.eu.sign(&claims));
    let mut answers = rig.open("eu", "edge-1").await.unwrap();
    let ended = async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a reason"),
                Err(status) => return status,
            }
        }
    };
    let ended = timeout(PATIENCE, ended).await.unwrap();
    assert_eq!(ended.code(), Code::Unauthenticated);
    assert!(ended.message().contains("expired"), "{ended}");
}

#[tokio::test]
async fn a_token_is_not_sent_without_tls() {
    let rig = Rig::start(HOUR).await;
    let token = rig.eu.sign(&edge_claims(EU, "edge-1"));
    rig.write_token(&token);
    // A listener that takes what comes, and has no certificate.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let upstream = format!("https://{address}").parse().unwrap();
    let edge = Edge::dial(vec![upstream], rig.security(), "edge-1", None, 7);
    edge.send(Event::Synced).await;
    let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    let mut sent = Vec::new();
    let first = timeout(PATIENCE, stream.read_buf(&mut sent)).await.unwrap();
    assert!(first.unwrap() > 0);
    // No answer of TLS: the edge gives up.
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let rest = timeout(PATIENCE, stream.read_to_end(&mut sent))
        .await
        .unwrap();
    assert!(rest.is_ok(), "{rest:?}");
    assert_eq!(sent.first(), Some(&22), "no handshake of TLS");
    let is_in = |text: &str| sent.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(!is_in("authorization") && !is_in(&token[..16]));
}
