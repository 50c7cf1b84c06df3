// SPDX-License-Identifier: Apache-2.0

//! Tests of hostile peers, which must not affect agents.

use std::io;
use std::time::Duration;

use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

use super::secure::Secure;
use super::support::{Client, Server, channel, hello, patiently, put, try_channel};
use super::tls;
use portolan_auth::RefusalReason;
use portolan_listener::Limits;

const HOUR: Duration = Duration::from_secs(3600);

/// Reads until the peer closes the connection.
async fn closed(mut stream: impl AsyncRead + Unpin) {
    let mut rest = Vec::new();
    // Both an end of file and a reset count.
    let _: io::Result<usize> = patiently(stream.read_to_end(&mut rest)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_silent_connections_do_not_stop_an_agent() {
    let mut secure = Secure::new().await;
    let mut bystander = secure.connect("z").await.unwrap();
    bystander.batch().await;
    let mut silent = Vec::new();
    for _ in 0..2_000 {
        silent.push(TcpStream::connect(secure.server.address).await.unwrap());
    }
    let mut client = secure.connect("a").await.unwrap();
    assert_eq!(client.batch().await.put, ["x"]);
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(bystander.batch().await.put, ["y"]);
    // The client got a turn, so silent connections were closed.
    assert!(secure.refused(RefusalReason::HandshakeTimeout) > 1_000);
    closed(silent.swap_remove(0)).await;
}

#[tokio::test]
async fn peers_without_tls_or_http_are_cut_off() {
    let mut secure = Secure::new().await;
    let mut bystander = secure.connect("z").await.unwrap();
    bystander.batch().await;
    let address = secure.server.address;
    for said in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        &[0; 512],
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(said).await.unwrap();
        closed(stream).await;
    }
    assert_eq!(secure.refused(RefusalReason::Handshake), 3);
    let config = || secure.config(Some(&secure.agent("a")));
    for said in [&[0xff; 4096][..], b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"] {
        let mut stream = tls::stream(address, config()).await.unwrap();
        stream.write_all(said).await.unwrap();
        closed(stream).await;
    }
    // A valid preface, then the header of a 16 MiB frame.
    let mut stream = tls::stream(address, config()).await.unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(preface).await.unwrap();
    stream
        .write_all(b"\xff\xff\xff\0\0\0\0\0\x01")
        .await
        .unwrap();
    closed(stream).await;
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(bystander.batch().await.put, ["y"]);
}

#[tokio::test]
async fn messages_that_are_too_large_end_only_their_own_stream() {
    let mut secure = Secure::new().await;
    let mut bystander = secure.connect("z").await.unwrap();
    bystander.batch().await;
    let mut client = secure.connect("a").await.unwrap();
    client.batch().await;
    let refusal = v1::Refusal {
        key: None,
        reason: "x".repeat(70_000),
    };
    let received = v1::Received {
        revision: 1,
        refused: vec![refusal],
        refused_total: 1,
        ..v1::Received::default()
    };
    client.say(Message::Received(received)).await;
    assert_eq!(client.next().await.unwrap_err().code(), Code::OutOfRange);
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(bystander.batch().await.put, ["y"]);
}

#[tokio::test]
async fn a_connection_without_an_agent_does_not_stay() {
    let limits = Limits {
        admission_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let mut secure = Secure::start(limits, HOUR).await;
    let mut bystander = secure.connect("z").await.unwrap();
    bystander.batch().await;
    let config = secure.config(Some(&secure.agent("a")));
    closed(tls::stream(secure.server.address, config).await.unwrap()).await;
    // The bystander's own timeout has passed by now; it stays because it is admitted.
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(bystander.batch().await.put, ["y"]);
}

#[tokio::test]
async fn there_is_an_end_to_connections() {
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let mut secure = Secure::start(limits, HOUR).await;
    let mut first = secure.connect("a").await.unwrap();
    first.batch().await;
    let second = secure.connect("b").await.unwrap();
    closed(TcpStream::connect(secure.server.address).await.unwrap()).await;
    assert_eq!(secure.refused(RefusalReason::Limit), 1);
    drop(second);
    // The place is free once the server has seen the disconnect.
    patiently(async { while secure.connect("c").await.is_err() {} }).await;
    secure.server.publisher.publish(&put(&["y"]));
    assert_eq!(first.batch().await.put, ["y"]);
}

#[tokio::test]
async fn plaintext_has_the_same_limits() {
    let limits = Limits {
        admission_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let server = Server::with(crate::ServeConfig::default(), None, limits).await;
    closed(TcpStream::connect(server.address).await.unwrap()).await;
    let first = Message::Hello(hello("a"));
    Client::open(server.address, first).await.unwrap();
}

#[tokio::test]
async fn a_connection_does_not_outlive_its_stream_for_long() {
    let limits = Limits {
        admission_timeout: Duration::from_secs(2),
        connections: 1,
        ..Limits::default()
    };
    let server = Server::with(crate::ServeConfig::default(), None, limits).await;
    let kept = channel(server.address).await;
    let first = Message::Hello(hello("a"));
    let client = Client::begin(kept.clone(), first, None).await.unwrap();
    drop(client);
    // A place is free once the server has closed the first connection, which its client keeps open.
    let is_let_in = async || match try_channel(server.address).await {
        Ok(channel) => Client::begin(channel, Message::Hello(hello("b")), None)
            .await
            .is_ok(),
        Err(_) => false,
    };
    patiently(async { while !is_let_in().await {} }).await;
    drop(kept);
}
