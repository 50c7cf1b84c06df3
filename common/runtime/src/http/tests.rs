// SPDX-License-Identifier: Apache-2.0

use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

async fn serve(limit: usize) -> (SocketAddr, CancellationToken) {
    let router = Router::new().route("/", get(|| async { "here" }));
    serve_router(router, limit).await
}

async fn serve_router(router: Router, limit: usize) -> (SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ending = CancellationToken::new();
    let connections = Connections::new(limit);
    tokio::spawn(serve_http(listener, router, connections, ending.clone()));
    (address, ending)
}

async fn ask(address: SocketAddr) -> String {
    let asking = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(PATIENCE, asking).await.unwrap()
}

/// Reads until the server closes the connection.
async fn until_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    let closed = timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    let _: Result<_, _> = closed.unwrap();
}

#[tokio::test]
async fn a_connection_has_one_request() {
    let (address, _ending) = serve(2).await;
    // The answer ends when the server closes the connection.
    let answer = ask(address).await;
    assert!(answer.ends_with("here"), "{answer}");
    assert!(answer.contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn connections_without_a_request_are_displaced() {
    let (address, _ending) = serve(2).await;
    let mut silent = Vec::new();
    for _ in 0..5 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // An incomplete request counts as none.
        stream.write_all(b"GET / HT").await.unwrap();
        silent.push(stream);
    }
    let answer = ask(address).await;
    assert!(answer.ends_with("here"), "{answer}");
    for stream in silent.drain(..4) {
        until_closed(stream).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_has_a_deadline() {
    let (address, _ending) = serve(2).await;
    let (mut reading, mut writing) = TcpStream::connect(address).await.unwrap().into_split();
    let start = tokio::time::Instant::now();
    let dripping = async {
        writing.write_all(b"GET / HTTP/1.1\r\nX: ").await.unwrap();
        while writing.write_all(b"x").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let mut rest = Vec::new();
    let _ = tokio::join!(dripping, reading.read_to_end(&mut rest));
    assert!(start.elapsed() < HEAD * 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_its_whole_time_arrives_behind_a_slow_head() {
    let late = || async {
        sleep(ANSWER_WITHIN).await;
        "late"
    };
    let (address, _ending) = serve_router(Router::new().route("/", get(late)), 2).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    sleep(HEAD - Duration::from_secs(1)).await;
    stream.write_all(b"Host: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("late"), "{answer}");
}

#[tokio::test]
async fn the_end_closes_the_listener_and_silent_connections() {
    let (address, ending) = serve(2).await;
    assert!(ask(address).await.ends_with("here"));
    let silent = TcpStream::connect(address).await.unwrap();
    ending.cancel();
    until_closed(silent).await;
    assert!(TcpStream::connect(address).await.is_err());
}
