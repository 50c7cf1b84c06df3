// SPDX-License-Identifier: Apache-2.0

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::*;

#[tokio::test]
async fn connections_inherit_what_is_set_on_the_listener() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    tune(&listener).unwrap();
    let _other = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let socket = SockRef::from(&stream);
    assert!(socket.tcp_nodelay().unwrap());
    assert_eq!(socket.tcp_notsent_lowat().unwrap(), UNSENT_BYTES);
    assert_eq!(
        socket.tcp_user_timeout().unwrap(),
        Some(ACKNOWLEDGED_WITHIN)
    );
}

/// A connection that HTTP/2 can always read from is never idle.
#[tokio::test]
async fn endless_input_does_not_replace_the_admission_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut other = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (stream, address) = listener.accept().await.unwrap();
    tokio::spawn(async move { while other.write_all(&[0; 4_096]).await.is_ok() {} });
    let limits = Limits {
        admission_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let accepted = Accepted {
        gate: Arc::new(Gate::new(limits)),
        address,
        permit: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
    };
    let mut connection = accepted.plain(stream);
    let ended = timeout(Duration::from_secs(10), async {
        loop {
            if let Err(error) = connection.read(&mut [0; 4_096]).await {
                return error;
            }
        }
    });
    assert_eq!(ended.await.unwrap().kind(), io::ErrorKind::TimedOut);
}
