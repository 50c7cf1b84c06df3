// SPDX-License-Identifier: Apache-2.0

//! The thread that empties the kernel's queue of connections while the runtime does not.
//!
//! In a flood, handshakes may need all of the processor. Then the runtime accepts too few connections, the queue is
//! full, and the kernel drops the connections of agents. The runtime accepts by itself otherwise: a connection that
//! passes from thread to thread makes the reconnection of an agent up to 40 % dearer.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::net::{SocketFlags, acceptfrom_with};

/// Interval at which the queue is emptied. The kernel's queue is long enough for a flood of 80,000 connections a second.
const TICK: Duration = Duration::from_millis(50);

/// Limit of connections of one tick, so that no flood keeps the thread from its end.
const AT_ONCE: usize = 4_096;

/// The thread. Dropping it ends the thread, which has closed its descriptor of the socket then.
#[derive(Debug)]
pub(crate) struct Relief {
    end: Option<mpsc::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Relief {
    /// Starts the thread. It passes each connection that the runtime has not accepted within [`TICK`], or the error of
    /// an accept, to `accepted`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        listener: TcpListener,
        accepted: impl Fn(io::Result<(TcpStream, SocketAddr)>) + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = mpsc::channel();
        let run = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                empty(&listener, &accepted);
            }
        };
        let thread = thread::Builder::new().name("accept".to_owned());
        Ok(Self {
            end: Some(end),
            thread: Some(thread.spawn(run)?),
        })
    }
}

impl Drop for Relief {
    fn drop(&mut self) {
        drop(self.end.take());
        // It ends at once. An error means that it has panicked, which was reported.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Accepts until the queue is empty, an accept fails, or there were [`AT_ONCE`].
fn empty(listener: &TcpListener, accepted: &impl Fn(io::Result<(TcpStream, SocketAddr)>)) {
    for _ in 0..AT_ONCE {
        match accept(listener) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) => {
                accepted(Err(error));
                return;
            }
            Ok(connection) => accepted(Ok(connection)),
        }
    }
}

/// Accepts a connection that does not block, in one system call.
fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, address) = acceptfrom_with(listener, flags)?;
    let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((socket.into(), address.try_into()?))
}
