// SPDX-License-Identifier: Apache-2.0

//! Tests of peers that request too much work: they are slowed down or cut off, and other peers are
//! not affected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_auth::testing::{Signer, claims, verifier};
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_runtime::Rate;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::secure::Secure;
use super::support::{Client, Server, channel, hello, patiently, put};
use super::tls;
use crate::ServeConfig;
use portolan_auth::{Authentication, RefusalReason};
use portolan_listener::Limits;

/// A plaintext server that accepts tokens.
async fn with_tokens(signer: &Signer, token_checks: Rate) -> Server {
    let verifier = verifier("", &[signer]);
    let config = ServeConfig {
        authentication: Authentication::Required(Some(Arc::new(verifier))),
        token_checks,
        ..ServeConfig::default()
    };
    let mut server = Server::with(config, None, Limits::default()).await;
    server.publisher.publish(&put(&["x"]));
    server.publisher.set_synced(&"".into());
    server
}

async fn connect(server: &Server, token: &str) -> Result<Client, Status> {
    let channel = channel(server.address).await;
    Client::begin(channel, Message::Hello(hello("a")), Some(token)).await
}

fn refused(server: &Server, reason: RefusalReason) -> u64 {
    let refusals = server.registry.refusals();
    refusals.iter().find(|(r, _)| *r == reason).unwrap().1
}

#[tokio::test]
async fn tokens_of_one_source_are_verified_only_so_often() {
    let signer = Signer::elliptic("1");
    let rate = Rate {
        per_second: 1,
        burst: 3,
    };
    let server = with_tokens(&signer, rate).await;
    let (good, bad) = (
        signer.sign(&claims()),
        Signer::elliptic("1").sign(&claims()),
    );
    let start = Instant::now();
    let mut limited = 0;
    for _ in 0..20 {
        let code = connect(&server, &bad).await.err().unwrap().code();
        limited += u64::from(code == Code::ResourceExhausted);
    }
    // The burst, and one more each second.
    let verified = refused(&server, RefusalReason::Token);
    assert_eq!(limited + verified, 20);
    assert!(verified <= 4 + start.elapsed().as_secs(), "{verified}");
    assert_eq!(refused(&server, RefusalReason::Rate), limited);
    // An agent of the same source gets its turn in time.
    let mut agent = patiently(async {
        loop {
            if let Ok(agent) = connect(&server, &good).await {
                return agent;
            }
        }
    })
    .await;
    agent.batch().await;
}

#[tokio::test]
async fn an_agent_that_never_stops_talking_is_cut_off_and_delays_nobody() {
    let mut server = Server::synced(&[put(&["x"])]).await;
    let mut quiet = server.connect(hello("quiet")).await;
    quiet.batch().await;
    let mut loud = server.connect(hello("loud")).await;
    let revision = loud.batch().await.commit.revision;
    let (mut said, start) = (0, Instant::now());
    // The message is valid; only its rate is excessive.
    let talk = async {
        loop {
            let received = v1::Received {
                revision,
                ..v1::Received::default()
            };
            if loud.try_say(Message::Received(received)).await.is_err() {
                return;
            }
            said += 1;
        }
    };
    let longest = Duration::from_secs(30);
    let (talked, ()) = tokio::join!(timeout(longest, talk), async {
        server.publisher.publish(&put(&["y"]));
        assert_eq!(quiet.batch().await.put, ["y"]);
    });
    println!("figure agent_messages {said} in {:?}", start.elapsed());
    talked.expect("cut off");
    // A burst of one megabyte, then 80 KiB a second.
    assert!(said < 20_000, "{said}");
    let nodes = server.registry.snapshot();
    assert!(
        nodes
            .iter()
            .any(|node| node.node.ends_with("quiet") && node.connected)
    );
}

/// A node with a valid certificate reconnects in a loop. Its burst is admitted, then its rate. Its
/// last admitted stream goes on, and other nodes are served as before.
#[tokio::test]
async fn a_node_that_reconnects_in_a_loop_is_told_when_to_come_back() {
    let secure = Secure::new().await;
    let rate = ServeConfig::default().reconnects;
    let config = secure.config(Some(&secure.agent("a")));
    let start = Instant::now();
    let mut last = None;
    let (mut admitted, mut refused) = (0_u64, 0_u64);
    for _ in 0..rate.burst + 60 {
        let channel = tls::channel(secure.server.address, Arc::clone(&config))
            .await
            .unwrap();
        match Client::begin(channel, Message::Hello(hello("a")), None).await {
            Ok(agent) => {
                admitted += 1;
                last = Some(agent);
            }
            Err(status) => {
                refused += 1;
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert_eq!(Reason::of(&status), Some(Reason::ReconnectRate));
                let wait = status.metadata().get("grpc-retry-pushback-ms").unwrap();
                assert!(wait.to_str().unwrap().parse::<u64>().unwrap() <= 1_000);
            }
        }
    }
    let most = u64::from(rate.burst) + 1 + start.elapsed().as_secs() + 1;
    assert!(admitted <= most && refused > 0, "{admitted} admitted");
    assert_eq!(secure.refused(RefusalReason::ReconnectRate), refused);
    let mut last = last.unwrap();
    assert_eq!(last.batch().await.put, ["x"]);
    let mut other = secure.connect("b").await.unwrap();
    assert_eq!(other.batch().await.put, ["x"]);
}
