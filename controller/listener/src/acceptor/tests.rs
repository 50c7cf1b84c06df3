// SPDX-License-Identifier: Apache-2.0

use std::io::Read as _;
use std::sync::{Mutex, mpsc};

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime;
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

/// A connection from an address of the loopback network.
fn connect(last: u8, target: SocketAddr) -> std::net::TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let source: SocketAddr = ([127, 0, 0, last], 0).into();
    socket.bind(&source.into()).unwrap();
    socket.connect(&target.into()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    socket.into()
}

/// Waits until the server closes a connection.
fn closed(mut stream: std::net::TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

/// The kernel's queue would keep the connections of a flood until the runtime has time, and then drop those of agents.
#[test]
fn a_flood_is_refused_while_the_runtime_has_no_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let target = listener.local_addr().unwrap();
    let acceptor = Acceptor {
        tls: None,
        limits: Limits {
            connections: 48,
            ..Limits::default()
        },
        refusals: Arc::default(),
        shutdown: CancellationToken::new(),
    };
    let _end = acceptor.shutdown.clone().drop_guard();
    let (served, peers) = mpsc::channel();
    let (busy, is_over) = mpsc::channel::<()>();
    let is_over = Arc::new(Mutex::new(is_over));
    let serve = move |connection: Connection| {
        served.send(connection.peer().address().ip()).unwrap();
        // An error means that the time is over.
        let _ = is_over.lock().unwrap().recv();
    };
    std::thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            acceptor.run(listener, serve).await;
        });
    });
    let _first = connect(2, target);
    assert_eq!(peers.recv().unwrap(), IpAddr::from([127, 0, 0, 2]));
    let mut flood: Vec<_> = (0..13).map(|_| connect(2, target)).collect();
    assert!(closed(flood.pop().unwrap()), "a quarter of 48 may wait");
    let _agent = connect(3, target);
    assert!(closed(flood.pop().unwrap()), "an agent takes its place");
    drop(busy);
    let next = [peers.recv().unwrap(), peers.recv().unwrap()];
    assert!(next.contains(&IpAddr::from([127, 0, 0, 3])), "{next:?}");
}
