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
