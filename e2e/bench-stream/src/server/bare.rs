// SPDX-License-Identifier: Apache-2.0

//! A minimal server: writes the same bytes to each socket in turn.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};

use anyhow::{Result, bail};

use super::{asks_of_driver, tell};
use crate::usage::{Usage, now_ns};
use crate::words::{Ask, Published, Told};

/// Serves until the driver closes its end.
pub(super) fn run(bytes: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    rustix::net::listen(&listener, 4_096)?;
    let mut sockets: Vec<TcpStream> = Vec::new();
    let batch = vec![b'x'; bytes];
    let mut revision = 0;
    let port = listener.local_addr()?.port();
    tell(&Told::Ready { port })?;
    for ask in asks_of_driver() {
        let told = match ask? {
            Ask::Usage => Told::Usage(Usage::now()?),
            Ask::Streams(wanted) => {
                while sockets.len() < wanted {
                    let (socket, _) = listener.accept()?;
                    socket.set_nodelay(true)?;
                    sockets.push(socket);
                }
                Told::Streams
            }
            Ask::Change(_) => {
                revision += 1;
                let at_ns = now_ns();
                for socket in &mut sockets {
                    socket.write_all(&batch)?;
                }
                Told::Published(Published { revision, at_ns })
            }
            Ask::Load { .. } => bail!("a bare server has no load"),
        };
        tell(&told)?;
    }
    Ok(())
}
