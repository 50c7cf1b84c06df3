// SPDX-License-Identifier: Apache-2.0

//! Tests of admission and of the lifetime of streams, with real TLS on both sides.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_tls::issue::{Authority, Issued};
use portolan_tls::{ClientFiles, NodeName, RelayName, ServerFiles};
use rustls::ClientConfig;
use tempfile::TempDir;
use tonic::{Code, Status};

use super::support::{Client, Server, hello, node, patiently, put};
use super::tls::channel;
use crate::ServeConfig;
use portolan_auth::{Authentication, RefusalReason};
use portolan_listener::Limits;

const HOUR: Duration = Duration::from_secs(3600);

/// A server with TLS, and its authority.
pub(super) struct Secure {
    pub(super) server: Server,
    authority: Authority,
    dir: TempDir,
}

pub(super) fn valid() -> Range<SystemTime> {
    let now = SystemTime::now();
    now - HOUR..now + HOUR
}

pub(super) fn authority() -> Authority {
    Authority::create("test", valid()).unwrap().0
}

/// Writes the files of a TLS Secret.
fn write(dir: &Path, authority: &Authority, issued: &Issued) {
    fs::write(dir.join("ca.crt"), authority.cert()).unwrap();
    fs::write(dir.join("tls.crt"), &issued.cert).unwrap();
    fs::write(dir.join("tls.key"), &issued.key).unwrap();
}

impl Secure {
    pub(super) async fn start(limits: Limits, grace: Duration) -> Self {
        Self::with(Authentication::Required(None), limits, grace).await
    }

    /// A server whose authentication may include tokens.
    pub(super) async fn with(
        authentication: Authentication,
        limits: Limits,
        grace: Duration,
    ) -> Self {
        let anonymous = matches!(authentication, Authentication::Required(Some(_)));
        let (authority, dir) = (authority(), tempfile::tempdir().unwrap());
        let issued = authority.server(&["localhost"], valid()).unwrap();
        write(dir.path(), &authority, &issued);
        let files = ServerFiles {
            cert: dir.path().join("tls.crt"),
            key: dir.path().join("tls.key"),
            client_ca: Some(dir.path().join("ca.crt")),
            anonymous,
        };
        let files = files.open("tls").unwrap();
        let tls = files.subscribe();
        let config = ServeConfig {
            authentication,
            credential_grace: grace,
            ..ServeConfig::default()
        };
        let mut server = Server::with(config, Some(tls), limits).await;
        server.publisher.publish(&put(&["x"]));
        server.publisher.set_synced(&"".into());
        let period = Duration::from_millis(10);
        tokio::spawn(files.follow(period, server.shutdown.clone()));
        Self {
            server,
            authority,
            dir,
        }
    }

    pub(super) async fn new() -> Self {
        Self::start(Limits::default(), HOUR).await
    }

    /// The certificate of a node's agent.
    pub(super) fn agent(&self, name: &str) -> Issued {
        let name = NodeName::new("", name).unwrap();
        self.authority.node(&name, valid()).unwrap()
    }

    /// The TLS configuration of a client that trusts the server's authority.
    pub(super) fn config(&self, issued: Option<&Issued>) -> Arc<ClientConfig> {
        config(&self.authority, issued)
    }

    /// Connects an agent with a valid certificate of a node.
    pub(super) async fn connect(&self, name: &str) -> Result<Client, Status> {
        let config = self.config(Some(&self.agent(name)));
        self.connect_with(name, config).await
    }

    async fn connect_with(&self, name: &str, config: Arc<ClientConfig>) -> Result<Client, Status> {
        let channel = channel(self.server.address, config).await?;
        Client::begin(channel, Message::Hello(hello(name)), None).await
    }

    pub(super) fn refused(&self, reason: RefusalReason) -> u64 {
        let refusals = self.server.registry.refusals();
        refusals.iter().find(|(r, _)| *r == reason).unwrap().1
    }
}

/// The TLS configuration of a client that trusts an authority.
fn config(authority: &Authority, issued: Option<&Issued>) -> Arc<ClientConfig> {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("ca.crt"), authority.cert()).unwrap();
    let identity = issued.map(|issued| {
        fs::write(at("tls.crt"), &issued.cert).unwrap();
        fs::write(at("tls.key"), &issued.key).unwrap();
        (at("tls.crt"), at("tls.key"))
    });
    let files = ClientFiles {
        ca: at("ca.crt"),
        identity,
    };
    let value = files.open("tls").unwrap().subscribe();
    Arc::clone(&value.borrow())
}

#[tokio::test]
async fn a_node_gets_its_table_and_no_other() {
    let secure = Secure::new().await;
    let mut client = secure.connect("a").await.unwrap();
    assert_eq!(client.batch().await.put, ["x"]);
    let config = secure.config(Some(&secure.agent("b")));
    let status = secure.connect_with("a", config).await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "node: you are \"b\"");
    assert_eq!(secure.refused(RefusalReason::WrongNode), 1);
    // The refused stream did not replace the node's own.
    assert_eq!(secure.server.registry.snapshot()[0].sessions, 1);
}

#[tokio::test]
async fn a_certificate_must_name_one_node_of_this_cluster() {
    let mut secure = Secure::new().await;
    let mut bystander = secure.connect("z").await.unwrap();
    bystander.batch().await;
    let (one, two) = ("portolan:///node/a", "portolan:///node/b");
    let cases: [(&[&str], RefusalReason, Code); 5] = [
        (&[], RefusalReason::Certificate, Code::Unauthenticated),
        (
            &["spiffe://x/node/a"],
            RefusalReason::Certificate,
            Code::Unauthenticated,
        ),
        (
            &[one, two],
            RefusalReason::Certificate,
            Code::Unauthenticated,
        ),
        (
            &["portolan:///node/a/node/a"],
            RefusalReason::Certificate,
            Code::Unauthenticated,
        ),
        (
            &["portolan://eu/node/a"],
            RefusalReason::WrongCluster,
            Code::PermissionDenied,
        ),
    ];
    for (uris, reason, code) in cases {
        let issued = secure.authority.client("a", uris, valid()).unwrap();
        let before = secure.refused(reason);
        let config = secure.config(Some(&issued));
        let status = secure.connect_with("a", config).await.err().unwrap();
        assert_eq!(status.code(), code, "{uris:?}: {status}");
        assert_eq!(secure.refused(reason), before + 1, "{uris:?}");
    }
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(bystander.batch().await.put, ["y"]);
}

/// In TLS 1.3 the client's handshake completes before the server has verified the certificate, so
/// the client sees the refusal only at its first use of the connection.
#[tokio::test]
async fn without_a_good_certificate_there_is_no_connection() {
    let mut secure = Secure::new().await;
    let mut bystander = secure.connect("z").await.unwrap();
    bystander.batch().await;
    let name = NodeName::new("", "a").unwrap();
    let now = SystemTime::now();
    let expired = now - HOUR..now - Duration::from_secs(1);
    let future = now + HOUR..now + 2 * HOUR;
    let stranger = authority();
    let of_server = secure.authority.server(&["portolan"], valid()).unwrap();
    let cases = [
        ("none", None),
        (
            "expired",
            Some(secure.authority.node(&name, expired).unwrap()),
        ),
        (
            "not yet",
            Some(secure.authority.node(&name, future).unwrap()),
        ),
        (
            "another authority's",
            Some(stranger.node(&name, valid()).unwrap()),
        ),
        ("a server's", Some(of_server)),
    ];
    for (number, (what, issued)) in (1..).zip(&cases) {
        let config = secure.config(issued.as_ref());
        let refused = secure.connect_with("a", config).await;
        assert!(refused.is_err(), "{what}");
        // The alert may reach the client before the server has counted the refusal.
        let counted = |registry: &crate::Registry| {
            registry
                .refusals()
                .contains(&(RefusalReason::Handshake, number))
        };
        secure.server.until(counted).await;
    }
    assert_eq!(secure.server.registry.snapshot().len(), 1);
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(bystander.batch().await.put, ["y"]);
}

#[tokio::test]
async fn a_stream_ends_when_its_certificate_has_expired() {
    let secure = Secure::start(Limits::default(), Duration::ZERO).await;
    let name = NodeName::new("", "a").unwrap();
    let now = SystemTime::now();
    // Certificates have a resolution of one second: this leaves at least five.
    let soon = now - HOUR..now + Duration::from_secs(6);
    let issued = secure.authority.node(&name, soon).unwrap();
    let config = secure.config(Some(&issued));
    let channel = channel(secure.server.address, config).await.unwrap();
    let begin = || Client::begin(channel.clone(), Message::Hello(hello("a")), None);
    let mut client = begin().await.unwrap();
    client.batch().await;
    let mut lasting = secure.connect("b").await.unwrap();
    lasting.batch().await;
    let status = client.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    assert!(status.message().contains("expired"), "{status}");
    // Its connection is still open, and no other stream begins there.
    let refused = begin().await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
    assert_eq!(secure.refused(RefusalReason::Expired), 1);
    let nodes = secure.server.registry.snapshot();
    assert_eq!((nodes.len(), nodes[1].connected), (2, true));
    assert_eq!(nodes[0].sessions, 1);
}

#[tokio::test]
async fn a_deleted_node_is_cut_off_until_it_is_back() {
    let secure = Secure::new().await;
    let registry = &secure.server.registry;
    let mut client = secure.connect("a").await.unwrap();
    client.batch().await;
    registry.node_deleted(&node("a"));
    let status = client.next().await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    let status = secure.connect("a").await.err().unwrap();
    assert_eq!(status.message(), "node: deleted");
    assert_eq!(secure.refused(RefusalReason::NodeDeleted), 1);
    secure.connect("b").await.unwrap();
    registry.node_present(&node("a"));
    secure.connect("a").await.unwrap();
}

/// Without authentication a name proves nothing, so a deletion of its node ends no stream.
#[tokio::test]
async fn in_plaintext_a_deleted_node_is_served() {
    let mut server = Server::synced(&[]).await;
    let mut client = server.connect(hello("a")).await;
    client.batch().await;
    server.registry.node_deleted(&node("a"));
    server.publisher.publish(&put(&["y"]));
    assert_eq!(client.batch().await.put, ["y"]);
    server.connect(hello("a")).await;
}

#[tokio::test]
async fn replaced_files_are_used_and_broken_ones_are_not() {
    let mut secure = Secure::new().await;
    let mut old = secure.connect("a").await.unwrap();
    old.batch().await;
    let next = authority();
    let server = next.server(&["localhost"], valid()).unwrap();
    let agent = next
        .node(&NodeName::new("", "b").unwrap(), valid())
        .unwrap();
    write(secure.dir.path(), &next, &server);
    // The files are polled.
    let mut client = patiently(async {
        loop {
            let config = config(&next, Some(&agent));
            if let Ok(client) = secure.connect_with("b", config).await {
                return client;
            }
        }
    })
    .await;
    client.batch().await;
    // The old authority is no longer accepted, but the old stream goes on.
    assert!(secure.connect("c").await.is_err());
    fs::write(secure.dir.path().join("tls.crt"), "broken").unwrap();
    let mut last = None;
    for _ in 0..20 {
        let config = config(&next, Some(&agent));
        last = Some(secure.connect_with("b", config).await.unwrap());
    }
    last.unwrap().batch().await;
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(old.batch().await.put, ["y"]);
}

#[tokio::test]
async fn only_relays_get_the_tables_of_all_nodes() {
    let secure = Secure::new().await;
    let all = |name: &str| v1::Hello {
        want: v1::hello::Want::AllNodes.into(),
        ..hello(name)
    };
    let begin = async |issued: &Issued, hello: v1::Hello| {
        let config = secure.config(Some(issued));
        let channel = channel(secure.server.address, config).await?;
        Client::begin(channel, Message::Hello(hello), None).await
    };
    let agent = secure.agent("a");
    let refused = begin(&agent, all("a")).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(secure.refused(RefusalReason::NotRelay), 1);
    let name = RelayName::new("", "a").unwrap();
    let relay = secure.authority.relay(&name, valid()).unwrap();
    let refused = begin(&relay, hello("a")).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(secure.refused(RefusalReason::WrongNode), 1);
    // A node and a relay of the same name have separate entries.
    let mut node = begin(&agent, hello("a")).await.unwrap();
    let mut relay = begin(&relay, all("a")).await.unwrap();
    assert_eq!(node.batch().await.put, ["x"]);
    assert_eq!(relay.batch().await.put, ["x"]);
    assert_eq!(secure.server.registry.connected(), 2);
    assert_eq!(secure.server.registry.counters().replaced, 0);
}
