// SPDX-License-Identifier: Apache-2.0

//! The peer of a connection, shared by the connection and its streams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use portolan_auth::{Certified, CertifiedError};

/// Number of refused credentials at which a connection is closed.
const MAX_REFUSALS: u32 = 8;

/// The peer of a connection. Each request has a clone among its extensions. Clones share state.
#[derive(Debug, Clone)]
pub struct Peer(Arc<State>);

#[derive(Debug)]
struct State {
    address: SocketAddr,
    certificate: Option<Result<Certified, CertifiedError>>,
    /// Number of admitted streams on the connection.
    streams: AtomicUsize,
    cut: AtomicBool,
    /// Number of refused credentials.
    refusals: AtomicU32,
    /// Cost of its requests and messages beyond their bytes, not taken from the budget yet.
    costs: AtomicU32,
    /// Whether it may send the objects of a cluster.
    is_edge: AtomicBool,
    /// Whether output is sent at once.
    open: AtomicBool,
    /// Whether a stream has more output soon, with which held-back output is to be sent.
    waiting: AtomicBool,
    /// Woken when the connection is cut, and at each end of a stream.
    connection: Mutex<Option<Waker>>,
}

impl Peer {
    pub(crate) fn new(
        address: SocketAddr,
        certificate: Option<Result<Certified, CertifiedError>>,
    ) -> Self {
        Self(Arc::new(State {
            address,
            certificate,
            streams: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            costs: AtomicU32::new(0),
            is_edge: AtomicBool::new(false),
            open: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            connection: Mutex::default(),
        }))
    }

    /// The address that the connection comes from.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The address for which a refusal is counted; `0.0.0.0` for an unknown peer.
    pub fn ip(peer: Option<&Self>) -> IpAddr {
        peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| {
            peer.address().ip()
        })
    }

    /// The node or relay that the certificate names, or why it names none; `None` without a
    /// certificate.
    pub fn certificate(&self) -> Option<&Result<Certified, CertifiedError>> {
        self.0.certificate.as_ref()
    }

    /// Admits a stream of an agent. The connection may stay open while the admission lives.
    pub fn admit(&self) -> Admission {
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        Admission(self.clone())
    }

    /// Counts a refused credential. Closes the connection after several, as verifying a credential
    /// costs more than sending it.
    pub fn refused(&self) {
        if self.0.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REFUSALS {
            self.cut();
        }
    }

    /// Charges the peer for work that costs as much as `bytes` bytes of its input.
    pub fn charge(&self, bytes: u32) {
        self.0.costs.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Raises the input budget of the connection to that of an edge controller, which sends all
    /// objects of a cluster.
    pub fn admit_edge(&self) {
        self.0.is_edge.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_edge(&self) -> bool {
        self.0.is_edge.load(Ordering::Relaxed)
    }

    pub(crate) fn take_costs(&self) -> u32 {
        self.0.costs.swap(0, Ordering::Relaxed)
    }

    /// Ends the holding back of output, unless a stream [waits](Self::wait): held-back output is
    /// sent, and later output goes out at once. Returns whether output was held back until now.
    pub fn open(&self) -> bool {
        !self.is_waiting() && !self.is_open() && !self.0.open.swap(true, Ordering::Relaxed)
    }

    /// Sets whether a stream has more output soon. Meanwhile [`Self::open`] has no effect.
    pub fn wait(&self, waits: bool) {
        self.0.waiting.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn open_now(&self) {
        self.0.open.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Closes the connection, whatever is on its way.
    fn cut(&self) {
        self.0.cut.store(true, Ordering::Release);
        self.wake();
    }

    /// Sets the waker for a cut of the connection and for the end of a stream on it.
    pub(crate) fn register(&self, waker: Waker) {
        *self.waker() = Some(waker);
    }

    fn wake(&self) {
        if let Some(waker) = self.waker().as_ref() {
            waker.wake_by_ref();
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        let waker = self.0.connection.lock();
        waker.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        if self.0.cut.load(Ordering::Acquire) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "cut off"));
        }
        Ok(())
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.0.streams.load(Ordering::Relaxed) > 0
    }
}

/// An admitted stream of an agent on a connection.
#[derive(Debug)]
pub struct Admission(Peer);

impl Admission {
    /// The peer of the connection.
    pub fn peer(&self) -> &Peer {
        &self.0
    }

    /// Closes the connection, whatever is on its way.
    pub fn cut(&self) {
        self.0.cut();
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.0.streams.fetch_sub(1, Ordering::Relaxed);
        // The connection starts its probation if this was the last stream.
        self.0.wake();
    }
}
