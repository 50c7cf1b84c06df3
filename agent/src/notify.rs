// SPDX-License-Identifier: Apache-2.0

//! Notifications to the service manager (sd_notify(3)): readiness, a status line, and signs of life of the
//! reconcile loop. Without `NOTIFY_SOCKET` in the environment nothing is sent.
//!
//! The protocol is a datagram of `NAME=value` lines. The crate `sd-notify` is not used: its send blocks while the
//! manager's queue is full, which would stop the very loop that is watched, and it takes the socket from the
//! environment alone, so that no unit test could give the loop one.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdDatagram};
use std::sync::Arc;
use std::time::Duration;

use portolan_runtime::Vital;
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::subscribe::Report;

/// Time that a manager with a full queue has to take a message.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts to notify the service manager of the environment. Returns the signs of life for the reconcile loop.
pub fn start(
    vital: &Vital,
    pending: watch::Receiver<BTreeSet<&'static str>>,
    reports: watch::Receiver<Option<Report>>,
) -> Watchdog {
    let manager = ServiceManager::of_environment();
    let watchdog = manager.watchdog();
    let notifying = manager.follow(pending, reports, vital.ending.clone());
    vital.spawn("service manager", notifying);
    watchdog
}

/// The service manager that started the agent, if there is one.
#[derive(Debug, Clone, Default)]
pub struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// Time without a sign of life after which the manager restarts the agent.
    limit: Option<Duration>,
}

/// Signs of life for the service manager, given by the loop that is watched.
#[derive(Debug, Default)]
pub struct Watchdog {
    /// Not tokio's: that one sends nothing before the runtime has seen it writable.
    socket: Option<StdDatagram>,
    limit: Duration,
    last: Option<Instant>,
}

impl ServiceManager {
    /// The manager of the process's environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. One that
    /// cannot be reached is none, and is logged.
    #[must_use]
    pub fn of_environment() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let Some(address) = variable("NOTIFY_SOCKET") else {
            return Self::default();
        };
        let limit = limit(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
        Self::at(&address, limit).unwrap_or_else(|error| {
            tracing::warn!(%error, ?address, "the service manager cannot be notified");
            Self::default()
        })
    }

    /// The manager at an address: a path, or an abstract one that begins with `@`.
    fn at(address: &OsStr, limit: Option<Duration>) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
        };
        let socket = StdDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        let socket = UnixDatagram::from_std(socket)?;
        Ok(Self {
            socket: Some(Arc::new(socket)),
            limit,
        })
    }

    /// The signs of life, for the watched loop. They are sent only if the manager asks for them.
    #[must_use]
    pub fn watchdog(&self) -> Watchdog {
        let (Some(limit), Some(socket)) = (self.limit, &self.socket) else {
            return Watchdog::default();
        };
        let socket = socket.as_fd().try_clone_to_owned();
        let socket = socket.inspect_err(|error| {
            tracing::warn!(%error, "no signs of life for the service manager");
        });
        Watchdog {
            socket: socket.ok().map(StdDatagram::from),
            limit,
            last: None,
        }
    }

    /// Tells the manager when the agent is ready for the first time, what it does, and that it stops. Ends with
    /// the token.
    ///
    /// There is no `RELOADING=1`: the unit's `ExecReload` is `portolan-agent reload`, whose end is the reload's.
    pub async fn follow(
        self,
        mut pending: watch::Receiver<BTreeSet<&'static str>>,
        mut reports: watch::Receiver<Option<Report>>,
        ending: CancellationToken,
    ) {
        let (mut said, mut ready) = (String::new(), false);
        loop {
            let waits_for = pending.borrow_and_update().clone();
            let status = status(&waits_for, reports.borrow_and_update().as_ref());
            if waits_for.is_empty() && !ready {
                ready = true;
                self.send(&format!("READY=1\nSTATUS={status}")).await;
            } else if status != said {
                self.send(&format!("STATUS={status}")).await;
            }
            said = status;
            let changed = tokio::select! {
                () = ending.cancelled() => break,
                changed = pending.changed() => changed,
                changed = reports.changed() => changed,
            };
            if changed.is_err() {
                // The loop has ended; so does the agent.
                ending.cancelled().await;
                break;
            }
        }
        let status = "stopping; the kernel keeps what is programmed";
        self.send(&format!("STOPPING=1\nSTATUS={status}")).await;
    }

    async fn send(&self, message: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        let sent = timeout(PATIENCE, socket.send(message.as_bytes())).await;
        let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if let Err(error) = sent {
            tracing::warn!(%error, "the service manager cannot be notified");
        }
    }
}

impl Watchdog {
    /// The longest time between two calls of [`alive`](Self::alive), at most `usual`: half of the manager's limit.
    #[must_use]
    pub fn interval(&self, usual: Duration) -> Duration {
        match self.socket {
            Some(_) => usual.min(self.limit / 2),
            None => usual,
        }
    }

    /// Records a sign of life. It is sent if the last one is a quarter of the limit old, and never waited for:
    /// the next one replaces one that is lost.
    pub fn alive(&mut self, now: Instant) {
        let Some(socket) = &self.socket else {
            return;
        };
        let is_recent = |last| now.duration_since(last) < self.limit / 4;
        if self.last.is_some_and(is_recent) {
            return;
        }
        // The socket does not block.
        if socket.send(b"WATCHDOG=1").is_ok() {
            self.last = Some(now);
        }
    }
}

/// The manager's limit. `WATCHDOG_PID` names the process that it is for.
fn limit(microseconds: Option<OsString>, pid: Option<OsString>) -> Option<Duration> {
    let own = std::process::id().to_string();
    if pid.is_some_and(|pid| pid != *own) {
        return None;
    }
    let microseconds = microseconds?.to_str()?.parse().ok()?;
    (microseconds > 0).then(|| Duration::from_micros(microseconds))
}

/// One line about the agent for `systemctl status`.
fn status(waits_for: &BTreeSet<&'static str>, report: Option<&Report>) -> String {
    if !waits_for.is_empty() {
        let waits_for: Vec<_> = waits_for.iter().copied().collect();
        return format!("waits for {}", waits_for.join(", "));
    }
    let Some(Report {
        revision, errors, ..
    }) = report
    else {
        return "the kernel has the table".to_owned();
    };
    match errors.len() {
        0 => format!("the kernel has revision {revision} of the table"),
        count => format!("the kernel has revision {revision} of the table, but for {count} errors"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
