// SPDX-License-Identifier: Apache-2.0

//! Attribution of an error to the backend or to this machine, and its text.

use std::fmt;
use std::io::{self, ErrorKind};
use std::time::Duration;

use portolan_health::{Outcome, Reason};
use rustix::io::Errno;
use tokio::time::{Instant, timeout_at};

/// The end of a probe before it has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The backend's fault.
    Fails(Reason),
    /// This machine's fault, or the configuration's.
    Ours(Reason),
}

/// A part of a probe.
pub(crate) type Checked<T> = Result<T, Stop>;

impl Stop {
    pub(crate) fn fails(reason: impl fmt::Display) -> Self {
        Self::Fails(reason.to_string().into())
    }

    pub(crate) fn ours(reason: impl fmt::Display) -> Self {
        Self::Ours(reason.to_string().into())
    }

    /// An error while a socket is prepared, when no packet has been sent.
    pub(crate) fn local(what: &str, error: &io::Error) -> Self {
        Self::ours(format_args!("{what}: {}", plain(error)))
    }

    /// An error of the call that begins a connection or sends a datagram. A route that is missing then is one of this
    /// machine: an interface that goes down takes its routes along. A router that lacks a route says so after the call,
    /// by an error of the socket, which counts against the backend.
    pub(crate) fn of_call(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::NETUNREACH) => Self::local("no route", &error),
            _ => error.into(),
        }
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match is_ours(&error) {
            true => Self::Ours(plain(&error).into()),
            false => Self::Fails(plain(&error).into()),
        }
    }
}

impl From<Stop> for Outcome {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Fails(reason) => Self::Fail(reason),
            Stop::Ours(reason) => Self::NoVerdict(reason),
        }
    }
}

/// Returns `true` if an error says that this machine has run out of something, or has no link or
/// interface.
fn is_ours(error: &io::Error) -> bool {
    let ours = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::ADDRNOTAVAIL,
        Errno::NETDOWN,
        Errno::NODEV,
    ];
    Errno::from_io_error(error).is_some_and(|errno| ours.contains(&errno))
}

/// An error in plain words, without its number.
pub(crate) fn plain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::ConnectionReset => "connection reset".to_owned(),
        ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        ErrorKind::UnexpectedEof => "closed too early".to_owned(),
        _ => {
            let text = error.to_string();
            let end = text.find(" (os error").unwrap_or(text.len());
            text[..end].to_owned()
        }
    }
}

/// Runs a whole exchange within its time from `start` on.
pub(crate) async fn within<T>(
    start: Instant,
    limit: Duration,
    exchange: impl Future<Output = Checked<T>>,
) -> Checked<T> {
    let late = |_| Stop::fails(format_args!("not done within {limit:?}"));
    timeout_at(start + limit, exchange).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_lacks_is_no_verdict() {
        for ours in [
            Errno::MFILE,
            Errno::NOBUFS,
            Errno::ADDRNOTAVAIL,
            Errno::NETDOWN,
            Errno::NODEV,
        ] {
            let outcome = Outcome::from(Stop::from(io::Error::from(ours)));
            assert!(matches!(outcome, Outcome::NoVerdict(_)), "{ours:?}");
        }
        let refused = Stop::from(io::Error::from(Errno::CONNREFUSED));
        assert_eq!(refused, Stop::fails("connection refused"));
        let timed_out = Stop::from(io::Error::from(Errno::TIMEDOUT));
        assert_eq!(timed_out, Stop::fails("Connection timed out"));
    }

    #[test]
    fn a_missing_route_is_this_machine_s_fault_at_the_call_and_the_backend_s_later() {
        let error = || io::Error::from(Errno::NETUNREACH);
        let at_the_call = Outcome::from(Stop::of_call(error()));
        let expected = Outcome::no_verdict("no route: network unreachable");
        assert_eq!(at_the_call, expected);
        let later = Outcome::from(Stop::from(error()));
        assert_eq!(later, Outcome::fail("network unreachable"));
        // Other errors are the same at any time. A route of the kind `unreachable` is a rule, and no missing route.
        for other in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::NODEV] {
            let error = || io::Error::from(other);
            assert_eq!(Stop::of_call(error()), Stop::from(error()), "{other:?}");
        }
    }
}
