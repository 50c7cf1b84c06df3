// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;

use portolan_health::Outcome;
use portolan_model::check::{Probe, UdpProbe};
use tokio::net::UdpSocket;

use crate::rig::{check, failure, run, short};

/// Answers every datagram; an empty answer is none.
pub(crate) async fn answering(answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2_048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let answer = answer(&buffer[..length]);
            if !answer.is_empty() {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    address
}

/// An address where nobody receives. Servers of other tests have another IP address, so that none takes the port.
pub(crate) async fn closed() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    socket.local_addr().unwrap()
}

fn probe(require_reply: bool) -> UdpProbe {
    UdpProbe {
        payload: b"hello".to_vec(),
        require_reply,
        expect: vec![Some(6), None, Some(6)],
        min_length: 2,
        ..UdpProbe::default()
    }
}

#[tokio::test]
async fn a_fitting_reply_passes() {
    let echo = answering(<[u8]>::to_vec).await;
    assert_eq!(
        run(&check(Probe::Udp(probe(true))), echo).await,
        Outcome::pass()
    );
}

#[tokio::test]
async fn a_lying_server_fails() {
    let server = answering(|_| b"no".to_vec()).await;
    let outcome = run(
        &check(Probe::Udp(UdpProbe {
            expect: vec![Some(7)],
            ..probe(false)
        })),
        server,
    )
    .await;
    assert_eq!(failure(&outcome), "a reply that begins with other bytes");
}

#[tokio::test]
async fn length_is_checked() {
    for (answer, reason) in [
        (vec![b'h'], "a reply of 1 bytes, not 2 to 255"),
        (vec![b'h'; 300], "a reply of 300 bytes, not 2 to 255"),
    ] {
        let server = answering(move |_| answer.clone()).await;
        let outcome = run(&check(Probe::Udp(probe(false))), server).await;
        assert_eq!(failure(&outcome), reason);
    }
}

#[tokio::test]
async fn silence_passes_unless_a_reply_is_required() {
    let silent = answering(|_| Vec::new()).await;
    assert_eq!(
        run(&short(Probe::Udp(probe(false))), silent).await,
        Outcome::pass()
    );
    let required = run(&short(Probe::Udp(probe(true))), silent).await;
    assert_eq!(failure(&required), "no reply within 500ms");
}

#[tokio::test]
async fn an_icmp_error_fails_at_once() {
    let refused = run(&check(Probe::Udp(probe(false))), closed().await).await;
    assert_eq!(failure(&refused), "connection refused");
}
