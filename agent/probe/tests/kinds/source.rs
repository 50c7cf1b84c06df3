// SPDX-License-Identifier: Apache-2.0

//! Source address, interface and mark of a probe.

use std::sync::{Arc, Mutex};

use portolan_health::Outcome;
use portolan_model::check::{Probe, Source, TcpProbe};
use portolan_probe::{Context, Target, probe};

use crate::rig::{check, serve};

async fn from(source: Source) -> (Outcome, Option<String>) {
    let seen = Arc::new(Mutex::new(None));
    let told = Arc::clone(&seen);
    let server = serve(move |stream| {
        let told = Arc::clone(&told);
        let peer = stream.peer_addr().map(|peer| peer.ip().to_string());
        async move {
            *told.lock().unwrap() = peer.ok();
            use tokio::io::AsyncWriteExt as _;
            let mut stream = stream;
            stream.write_all(b"x").await
        }
    })
    .await;
    let step = portolan_model::check::Step {
        send: None,
        expect: Some("x".to_owned()),
    };
    let mut target = Target::at(server);
    target.source = source;
    let check = check(Probe::Tcp(TcpProbe { steps: vec![step] }));
    let outcome = probe(&check, &target, &Context::default()).await;
    let peer = seen.lock().unwrap().clone();
    (outcome, peer)
}

#[tokio::test]
async fn the_source_address_is_the_configured_one() {
    let source = Source {
        address: Some("127.0.0.9".parse().unwrap()),
        interface: Some("lo".into()),
        mark: None,
    };
    assert_eq!(
        from(source).await,
        (Outcome::pass(), Some("127.0.0.9".to_owned()))
    );
}

#[tokio::test]
async fn a_source_that_this_machine_lacks_is_our_fault() {
    let address = Source {
        address: Some("192.0.2.77".parse().unwrap()),
        ..Source::default()
    };
    let interface = Source {
        interface: Some("none0".into()),
        ..Source::default()
    };
    for source in [address, interface] {
        let (outcome, _) = from(source).await;
        assert!(matches!(outcome, Outcome::NoVerdict(_)), "{outcome:?}");
    }
}
