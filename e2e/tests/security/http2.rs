// SPDX-License-Identifier: Apache-2.0

//! The cost of an admitted agent that abuses HTTP/2, and its end.

use std::time::{Duration, Instant};

use portolan_e2e::figure::{Goal, figure};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::client::{Client, config, patiently, tls};
use crate::server::Server;

/// The length of a flood that the server does not end.
const LONGEST: Duration = Duration::from_secs(20);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// The stream of the tables; floods use later ones.
const SYNC: u32 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// A header that no table of HPACK keeps.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// The headers of a call.
fn call() -> Vec<u8> {
    [
        literal(":method", "POST"),
        literal(":scheme", "https"),
        literal(":path", "/portolan.v1.Tables/Sync"),
        literal(":authority", "localhost"),
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ]
    .concat()
}

/// A connection of a node's agent that has its table.
async fn connect(server: &Server, node: &str) -> TlsStream<TcpStream> {
    let certificate = config(&server.certs().join("nodes").join(node));
    let mut stream = tls(server.agents, certificate).await.unwrap();
    let hello = v1::Hello {
        version: 1,
        node: node.to_owned(),
        ..v1::Hello::default()
    };
    let hello = v1::AgentMessage {
        message: Some(Message::Hello(hello)),
    }
    .encode_to_vec();
    let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
    let said = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, SYNC, &call()),
        frame(DATA, 0, SYNC, &[&[0], &length[..], &hello].concat()),
    ];
    stream.write_all(&said.concat()).await.unwrap();
    // The Welcome, or a frame before it.
    patiently(stream.read_u8()).await.unwrap();
    stream
}

/// The frames of a flood, given the number of streams used before.
fn words(flood: &str, used: u32) -> Vec<u8> {
    let streams = (used..used + 100).map(|number| 2 * number + SYNC + 2);
    match flood {
        "rapid_reset" => streams
            .flat_map(|stream| {
                let headers = frame(HEADERS, END_HEADERS, stream, &call());
                [headers, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
            })
            .collect(),
        "continuations" if used == 0 => frame(HEADERS, 0, SYNC + 2, &[]),
        "continuations" => frame(CONTINUATION, 0, SYNC + 2, &[]).repeat(100),
        // Each of them larger than a request's headers can be.
        "headers" => streams
            .take(1)
            .flat_map(|stream| {
                let padding = literal("x", &"x".repeat(120)).repeat(125);
                let (first, rest) = (call(), padding);
                let more = frame(CONTINUATION, END_HEADERS, stream, &rest);
                [
                    frame(HEADERS, 0, stream, &first),
                    frame(CONTINUATION, 0, stream, &rest),
                    more,
                ]
                .concat()
            })
            .collect(),
        "pings" => frame(PING, 0, 0, &[7; 8]).repeat(100),
        "settings" => frame(SETTINGS, 0, 0, &[]).repeat(100),
        "priorities" => frame(PRIORITY, 0, SYNC + 2, &[0, 0, 0, 0, 1]).repeat(100),
        "windows" => frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).repeat(100),
        "empty_data" => frame(DATA, 0, SYNC, &[]).repeat(100),
        other => unreachable!("{other}"),
    }
}

/// Repeats a flood until the connection is closed. Returns the time until then, if it was.
async fn flood(stream: TlsStream<TcpStream>, kind: &str) -> Option<Duration> {
    let start = Instant::now();
    let (mut reader, mut writer) = split(stream);
    let say = async {
        for turn in 0.. {
            if writer.write_all(&words(kind, 100 * turn)).await.is_err() {
                return;
            }
        }
    };
    let listen = async {
        let mut buffer = vec![0; 64 << 10];
        while reader.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    };
    let both = async {
        tokio::select! {
            () = say => {}
            () = listen => {}
        }
    };
    let ended = timeout(LONGEST, both).await;
    ended.is_ok().then(|| start.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_cost_little_and_end() {
    let server = Server::start();
    let certificate = |node: &str| config(&server.certs().join("nodes").join(node));
    let mut bystander = Client::connect(server.agents, certificate("a"), "a")
        .await
        .unwrap();
    bystander.until(1).await;
    let mut failed = Vec::new();
    for (turn, kind) in (0..).zip([
        "rapid_reset",
        "continuations",
        "headers",
        "pings",
        "settings",
        "priorities",
        "windows",
        "empty_data",
    ]) {
        let stream = connect(&server, "b").await;
        let (cpu, resident) = (server.cpu(), server.resident_kib());
        let start = Instant::now();
        let flood = flood(stream, kind);
        let change = async {
            let (services, start) = (1 + (turn + 1) % 2, Instant::now());
            server.publish(services);
            bystander.until(services).await;
            start.elapsed()
        };
        let (ended, change) = tokio::join!(flood, change);
        let took = start.elapsed().max(Duration::from_secs(1)).as_secs_f64();
        let share = (server.cpu() - cpu).as_secs_f64() / took * 100.0;
        let grown = server.resident_kib().saturating_sub(resident);
        let name = |what: &str| format!("http2_{kind}_{what}");
        let ended = ended.unwrap_or(LONGEST * 2).as_secs_f64();
        let (most, longest) = (Goal::AtMost(25.0), Goal::AtMost(LONGEST.as_secs_f64()));
        figure(&name("cpu"), share, "% of a core", Some(most));
        figure(&name("closed"), ended, "s", Some(longest));
        figure(
            &name("memory_growth"),
            grown as f64,
            "KiB",
            Some(Goal::AtMost(8_192.0)),
        );
        figure(&name("change"), change.as_secs_f64() * 1e3, "ms", None);
        // A busy machine is slower, which only lowers the share of the processor.
        if ended > LONGEST.as_secs_f64() || grown > 8_192 || share > 50.0 {
            failed.push(kind);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
