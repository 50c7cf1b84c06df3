// SPDX-License-Identifier: Apache-2.0

//! With the real controller's half, and TLS.

use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use portolan_auth::{
    Authentication, KeySet, KeyWanted, RefusalReason, TokenConfig, TokenRole, TokenVerifier,
};
use portolan_listener::Limits;
use portolan_serve::{Registry, ServeConfig, TablesServer};
use portolan_tablelog::{Publisher, Retention};
use portolan_tls::issue::{Authority, Issued};
use portolan_tls::{ClientFiles, NodeName, ServerFiles};
use rcgen::KeyPair;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::{Security, TlsClient};
use super::support::{Agent, patiently};

const HOUR: Duration = Duration::from_secs(3600);
const POLL: Duration = Duration::from_millis(10);

fn valid() -> Range<SystemTime> {
    let now = SystemTime::now();
    now - HOUR..now + HOUR
}

fn write(dir: &Path, authority: &Authority, issued: &Issued) {
    fs::write(dir.join("ca.crt"), authority.cert()).unwrap();
    fs::write(dir.join("tls.crt"), &issued.cert).unwrap();
    fs::write(dir.join("tls.key"), &issued.key).unwrap();
}

/// A controller whose files are in a directory.
struct Server {
    address: SocketAddr,
    registry: Arc<Registry>,
    authority: Authority,
    dir: TempDir,
    token: CancellationToken,
    _stop: DropGuard,
}

impl Server {
    /// One for agents with certificates.
    async fn start() -> Self {
        Self::with(Authentication::Required(None), HOUR).await
    }

    async fn with(authentication: Authentication, credential_grace: Duration) -> Self {
        let (authority, _) = Authority::create("test", valid()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let issued = authority.server(&["127.0.0.1"], valid()).unwrap();
        write(dir.path(), &authority, &issued);
        let files = ServerFiles {
            cert: dir.path().join("tls.crt"),
            key: dir.path().join("tls.key"),
            client_ca: Some(dir.path().join("ca.crt")),
            anonymous: matches!(authentication, Authentication::Required(Some(_))),
        };
        let files = files.open("tls").unwrap();
        let config = ServeConfig {
            authentication,
            credential_grace,
            ..ServeConfig::default()
        };
        let (mut publisher, tables) = Publisher::new(Retention::default());
        publisher.set_synced(&"".into());
        let registry = Arc::new(Registry::default());
        let token = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = TablesServer::new(tables, Arc::clone(&registry), config, token.clone());
        let serving = service.serve(listener, Some(files.subscribe()), Limits::default());
        tokio::spawn(async move {
            serving.await.unwrap();
            drop(publisher);
        });
        tokio::spawn(files.follow(POLL, token.clone()));
        Self {
            address,
            registry,
            authority,
            dir,
            _stop: token.clone().drop_guard(),
            token,
        }
    }

    /// The files of node a's agent.
    fn agent_dir(&self, node: &str) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let name = NodeName::new("", node).unwrap();
        write(
            dir.path(),
            &self.authority,
            &self.authority.node(&name, valid()).unwrap(),
        );
        dir
    }

    /// An agent whose files are there, and are followed.
    fn agent(&self, dir: &Path, token_file: Option<PathBuf>) -> Agent {
        let own = || (dir.join("tls.crt"), dir.join("tls.key"));
        let files = ClientFiles {
            ca: dir.join("ca.crt"),
            identity: token_file.is_none().then(own),
        };
        let files = files.open_when_present("tls").unwrap();
        let security = Security::Tls(TlsClient {
            config: files.subscribe(),
            server_name: None,
            token_file,
        });
        tokio::spawn(files.follow(POLL, self.token.clone()));
        Agent::start_with(&[self.address], security)
    }

    async fn until_refused(&self, reason: RefusalReason) {
        patiently(async {
            while self
                .registry
                .refusals()
                .iter()
                .all(|(r, n)| *r != reason || *n == 0)
            {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn an_agent_with_its_certificate_gets_its_table() {
    let server = Server::start().await;
    let dir = server.agent_dir("a");
    let mut agent = server.agent(dir.path(), None);
    agent.table(|_| true).await;
    assert_eq!(server.registry.snapshot()[0].node, "a");
}

#[tokio::test]
async fn an_agent_that_is_refused_tries_again_with_new_files() {
    let server = Server::start().await;
    let dir = server.agent_dir("b");
    let mut agent = server.agent(dir.path(), None);
    server.until_refused(RefusalReason::WrongNode).await;
    let good = server.agent_dir("a");
    for file in ["tls.crt", "tls.key"] {
        fs::copy(good.path().join(file), dir.path().join(file)).unwrap();
    }
    agent.table(|_| true).await;
    assert!(agent.stats.stream.connect_failures.load(Ordering::Relaxed) >= 1);
}

#[tokio::test]
async fn an_agent_uses_files_that_appear_later() {
    let server = Server::start().await;
    let (dir, good) = (tempfile::tempdir().unwrap(), server.agent_dir("a"));
    let mut agent = server.agent(dir.path(), None);
    agent.until(|stats| &stats.stream.connect_failures, 1).await;
    assert!(
        server
            .registry
            .refusals()
            .iter()
            .all(|(_, count)| *count == 0)
    );
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        fs::copy(good.path().join(file), dir.path().join(file)).unwrap();
    }
    agent.table(|_| true).await;
}

/// Another authority on the controller's side is followed by the agent's, whichever is first.
#[tokio::test]
async fn an_agent_does_not_speak_to_whom_it_does_not_trust() {
    let server = Server::start().await;
    let dir = server.agent_dir("a");
    let (other, _) = Authority::create("other", valid()).unwrap();
    fs::write(dir.path().join("ca.crt"), other.cert()).unwrap();
    let mut agent = server.agent(dir.path(), None);
    agent.until(|stats| &stats.stream.connect_failures, 1).await;
    assert!(server.registry.snapshot().is_empty());
    let issued = other.server(&["127.0.0.1"], valid()).unwrap();
    let own = other
        .node(&NodeName::new("", "a").unwrap(), valid())
        .unwrap();
    write(server.dir.path(), &other, &issued);
    write(dir.path(), &other, &own);
    agent.table(|_| true).await;
}

struct Signer(EncodingKey);

impl Signer {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap().serialize_der();
        Self(EncodingKey::from_ec_der(&key))
    }

    fn authentication(&self) -> Authentication {
        let mut key = Jwk::from_encoding_key(&self.0, Algorithm::ES256).unwrap();
        key.common.key_id = Some("1".to_owned());
        let set = serde_json::to_vec(&JwkSet { keys: vec![key] }).unwrap();
        let (_, keys) = watch::channel(Arc::new(KeySet::parse(&set).unwrap()));
        let config = TokenConfig {
            issuer: "issuer".to_owned(),
            audience: "portolan-controller".to_owned(),
            cluster: String::new(),
            service_accounts: vec![],
            role: TokenRole::Node,
        };
        let verifier = TokenVerifier::new(config, keys, KeyWanted::default());
        Authentication::Required(Some(Arc::new(verifier)))
    }

    /// A token of node a that expires so long from now.
    fn token(&self, lasting: Duration) -> String {
        let expires = SystemTime::now() + lasting;
        let claims = serde_json::json!({
            "iss": "issuer",
            "aud": ["portolan-controller"],
            "exp": expires.duration_since(UNIX_EPOCH).unwrap().as_secs(),
            "kubernetes.io": {"namespace": "x", "node": {"name": "a"}},
        });
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some("1".to_owned());
        encode(&header, &claims, &self.0).unwrap()
    }
}

#[tokio::test]
async fn a_token_is_replaced_before_the_stream_ends_for_it() {
    let signer = Signer::new();
    let server = Server::with(signer.authentication(), Duration::ZERO).await;
    let dir = server.agent_dir("x");
    let path = dir.path().join("token");
    fs::write(&path, signer.token(Duration::from_secs(6))).unwrap();
    let mut agent = server.agent(dir.path(), Some(path.clone()));
    agent.table(|_| true).await;
    fs::write(&path, signer.token(HOUR)).unwrap();
    agent.until(|stats| &stats.stream.streams, 2).await;
    // The new stream goes on where the old one was.
    let counters = server.registry.counters();
    assert_eq!((counters.snapshots, counters.sessions), (1, 2));
    assert_eq!(
        server
            .registry
            .refusals()
            .iter()
            .map(|(_, n)| n)
            .sum::<u64>(),
        0
    );
}

#[tokio::test]
async fn without_a_good_token_there_is_no_table() {
    let signer = Signer::new();
    let server = Server::with(signer.authentication(), HOUR).await;
    let dir = server.agent_dir("x");
    let path = dir.path().join("token");
    let mut agent = server.agent(dir.path(), Some(path.clone()));
    agent.until(|stats| &stats.stream.connect_failures, 1).await;
    fs::write(&path, Signer::new().token(HOUR)).unwrap();
    server.until_refused(RefusalReason::Token).await;
    assert!(agent.tables.borrow().is_none());
    fs::write(&path, signer.token(HOUR)).unwrap();
    agent.table(|_| true).await;
}
