// SPDX-License-Identifier: Apache-2.0

//! The time limit of a connection without an admitted stream.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use portolan_runtime::Origin;
use tokio::time::sleep;

use crate::gate::Gate;

/// A time limit that ends early when too many connections lack a stream and this is the oldest one
/// of the source with the most of them.
pub(crate) struct Probation(Pin<Box<dyn Future<Output = &'static str> + Send>>);

impl Probation {
    /// Starts the time.
    ///
    /// # Errors
    /// If there is no slot left.
    pub(crate) fn begin(gate: &Gate, address: SocketAddr) -> io::Result<Self> {
        let unadmitted = &gate.unadmitted;
        let slot = unadmitted.displace(address.ip(), Origin::Remote, Instant::now());
        let slot = slot.map_err(io::Error::other)?;
        let within = gate.limits.admission_timeout;
        Ok(Self(Box::pin(async move {
            tokio::select! {
                () = sleep(within) => "no stream of an agent on this connection for too long",
                () = slot.displaced() => "no stream of an agent, and others needed its slot",
            }
        })))
    }

    /// Completes at the end of the time, with the error that ends the connection.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let over = self.0.as_mut().poll(context);
        over.map(|message| io::Error::new(io::ErrorKind::TimedOut, message))
    }
}

impl fmt::Debug for Probation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Probation")
    }
}
