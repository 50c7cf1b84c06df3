use std::io::Read as _;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::*;

/// A connection, its peer, and the other end.
async fn connected() -> (Connection, Peer, std::net::TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, address) = listener.accept().await.unwrap();
    let permit = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
    let peer = Peer::new(address, None);
    let hour = Duration::from_secs(3_600);
    let connection = Connection::new(Io::Plain(stream), peer.clone(), permit, hour);
    (connection, peer, other)
}

async fn say(connection: &mut Connection, words: &[u8]) {
    connection.write_all(words).await.unwrap();
    connection.flush().await.unwrap();
}

/// Nothing was sent: it would be here, as this is one machine.
fn nothing(other: &std::net::TcpStream) {
    other.set_nonblocking(true).unwrap();
    let error = other.peek(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    other.set_nonblocking(false).unwrap();
}

/// Waits for so many bytes.
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
