// SPDX-License-Identifier: Apache-2.0

use std::io::Read as _;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::*;
use crate::Limits;

/// A connection, its peer, and the client's socket.
async fn connected() -> (Connection, Peer, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, address) = listener.accept().await.unwrap();
    let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
    let peer = Peer::new(address, None);
    let limits = Limits {
        admission_timeout: Duration::from_secs(3_600),
        ..Limits::default()
    };
    let gate = Arc::new(Gate::new(limits));
    let connection = Connection::new(Io::Plain(stream), peer.clone(), permit, gate);
    (connection, peer, other)
}

async fn say(connection: &mut Connection, words: &[u8]) {
    connection.write_all(words).await.unwrap();
    connection.flush().await.unwrap();
}

/// Asserts that nothing was sent. Over loopback it would have arrived.
fn nothing(other: &std::net::TcpStream) {
    other.set_nonblocking(true).unwrap();
    let error = other.peek(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    other.set_nonblocking(false).unwrap();
}

/// Waits for `count` bytes.
fn arrived(other: &mut std::net::TcpStream, count: usize) -> Vec<u8> {
    let patience = Some(Duration::from_secs(20));
    other.set_read_timeout(patience).unwrap();
    let mut bytes = vec![0; count];
    other.read_exact(&mut bytes).unwrap();
    bytes
}

#[tokio::test]
async fn first_words_go_out_with_the_answer_to_an_agent() {
    let (mut connection, peer, mut other) = connected().await;
    say(&mut connection, b"settings").await;
    say(&mut connection, b", window").await;
    nothing(&other);
    let _admission = peer.admit();
    say(&mut connection, b", answer").await;
    assert_eq!(arrived(&mut other, 24), b"settings, window, answer");
    say(&mut connection, b"change").await;
    assert_eq!(arrived(&mut other, 6), b"change");
    assert!(!peer.open());
}

#[tokio::test]
async fn first_words_go_out_when_there_is_no_answer() {
    let (mut connection, peer, mut other) = connected().await;
    say(&mut connection, b"settings").await;
    assert!(peer.open());
    assert!(!peer.open());
    connection.flush().await.unwrap();
    assert_eq!(arrived(&mut other, 8), b"settings");
}

#[tokio::test]
async fn only_so_much_is_held_back_and_nothing_at_the_end() {
    let (mut connection, _, mut other) = connected().await;
    say(&mut connection, b"settings").await;
    say(&mut connection, &[b'x'; HELD_BYTES]).await;
    assert!(arrived(&mut other, HELD_BYTES + 8).starts_with(b"settingsx"));
    let (mut connection, _, mut other) = connected().await;
    say(&mut connection, b"goodbye").await;
    connection.shutdown().await.unwrap();
    assert_eq!(arrived(&mut other, 7), b"goodbye");
}

#[tokio::test]
async fn first_words_wait_for_a_stream_that_has_more_to_say() {
    let (mut connection, peer, mut other) = connected().await;
    peer.wait(true);
    say(&mut connection, b"settings").await;
    let _admission = peer.admit();
    say(&mut connection, b", headers").await;
    assert!(!peer.open());
    nothing(&other);
    peer.wait(false);
    say(&mut connection, b", table").await;
    assert_eq!(arrived(&mut other, 24), b"settings, headers, table");
}

#[tokio::test]
async fn nothing_that_was_read_first_is_lost() {
    use std::io::Write as _;

    use tokio::io::AsyncReadExt as _;

    let (mut connection, _, mut other) = connected().await;
    let said: Vec<u8> = (0_u8..=255).cycle().take(3 * FIRST_BYTES).collect();
    other.write_all(&said).unwrap();
    other.shutdown(std::net::Shutdown::Write).unwrap();
    let mut heard = vec![0; 24];
    connection.read_exact(&mut heard).await.unwrap();
    connection.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, said);
    connection.shutdown().await.unwrap();
    drop(connection);
    assert_eq!(other.read(&mut [0]).unwrap(), 0);
}

#[tokio::test]
async fn a_peer_with_many_refusals_is_cut_off() {
    use tokio::io::AsyncReadExt as _;

    let (mut connection, peer, _other) = connected().await;
    for _ in 1..8 {
        peer.refused();
    }
    say(&mut connection, b"no").await;
    peer.refused();
    let error = connection.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}
