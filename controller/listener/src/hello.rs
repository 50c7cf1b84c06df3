// SPDX-License-Identifier: Apache-2.0

//! The first message of a TLS client, read completely before the handshake continues.

use std::io;

use rustls::server::{Accepted, Acceptor};
use tokio::net::TcpStream;

/// Reads a ClientHello.
///
/// # Errors
/// If the peer closes the connection, or sends anything else, which a TLS alert answers.
pub(crate) async fn client_hello(stream: &TcpStream) -> io::Result<Accepted> {
    // A silent peer takes no buffer.
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
                // The alert is dropped if the socket's buffer is full.
                let _ = alert.write(&mut Socket(stream));
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

/// Returns `true` if the socket has data of the peer that was not read yet.
pub(crate) fn is_unread(stream: &TcpStream) -> bool {
    rustix::io::ioctl_fionread(stream).is_ok_and(|bytes| bytes > 0)
}

/// Reads and writes without blocking.
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
