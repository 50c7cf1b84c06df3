// SPDX-License-Identifier: Apache-2.0

//! The thread that accepts connections. It does nothing else, so that the kernel's queue stays short while
//! handshakes need all of the processor.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio_util::sync::CancellationToken;

/// Pause after a failed accept. A process that has run out of descriptors gets no event when one is
/// free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Starts the thread. It passes each connection, which does not block, or the error of an accept to `accepted`,
/// until `end`.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(
    listener: TcpListener,
    end: CancellationToken,
    accepted: impl Fn(io::Result<(TcpStream, SocketAddr)>) + Send + 'static,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let run = move || {
        let all = accept_all(listener, &accepted);
        if let Some(Err(error)) = runtime.block_on(end.run_until_cancelled(all)) {
            accepted(Err(error));
        }
    };
    let thread = thread::Builder::new().name("accept".to_owned());
    thread.spawn(run).map(drop)
}

/// Accepts connections for ever.
///
/// # Errors
/// If the listener cannot be waited for.
async fn accept_all(
    listener: TcpListener,
    accepted: &impl Fn(io::Result<(TcpStream, SocketAddr)>),
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let connection = listener.accept().await;
        // The runtime that serves the connection waits for its input.
        let connection = connection.and_then(|(stream, address)| Ok((stream.into_std()?, address)));
        let has_failed = connection.is_err();
        accepted(connection);
        if has_failed {
            thread::sleep(ACCEPT_PAUSE);
        }
    }
}
