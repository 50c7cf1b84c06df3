//! The first message of a TLS client, read whole before anything else is done for it.

use std::io;

use rustls::server::{Accepted, Acceptor};
use tokio::net::TcpStream;

/// Reads a ClientHello.
///
/// # Errors
/// If the peer closes the connection, or says something else; it is told so.
pub(crate) async fn client_hello(stream: &TcpStream) -> io::Result<Accepted> {
    // One that says nothing costs nothing.
    stream.readable().await?;
    let mut acceptor = Box::new(Acceptor::default());
    loop {
        stream.readable().await?;
        match acceptor.read_tls(&mut Socket(stream)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, mut alert)) => {
                // Nobody waits until there is room for it.
                let _ = alert.write(&mut Socket(stream));
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

/// Whether the peer has said something that was not read yet: then it waits for us.
pub(crate) fn is_unread(stream: &TcpStream) -> bool {
    rustix::io::ioctl_fionread(stream).is_ok_and(|bytes| bytes > 0)
}

/// Reads and writes without waiting.
struct Socket<'a>(&'a TcpStream);

impl io::Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl io::Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
