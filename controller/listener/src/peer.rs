//! The other end of a connection, as its streams know it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use portolan_auth::Certified;

/// How often a peer can show a credential that is not good before its connection is closed.
const MAX_REFUSALS: u32 = 8;

/// The other end, as far as the connection knows it. Goes with each request.
#[derive(Debug, Clone)]
pub struct Peer(Arc<State>);

#[derive(Debug)]
struct State {
    address: SocketAddr,
    certificate: Option<Result<Certified, String>>,
    /// How many streams of agents there are on it.
    streams: AtomicUsize,
    cut: AtomicBool,
    /// How often what it has shown was refused.
    refusals: AtomicU32,
    /// What its requests and messages cost beyond their bytes, not charged yet.
    costs: AtomicU32,
    /// Whether what is written goes out at once.
    open: AtomicBool,
    /// Whether a stream has more to say soon, with which what is held back is to go.
    waiting: AtomicBool,
    /// Woken when it is cut, and when a stream on it ends, as often as that happens.
    connection: Mutex<Option<Waker>>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr, certificate: Option<Result<Certified, String>>) -> Self {
        Self(Arc::new(State {
            address,
            certificate,
            streams: AtomicUsize::new(0),
            cut: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            costs: AtomicU32::new(0),
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

    /// The address of whoever a refusal is counted for: nobody's, if it is not known.
    pub fn ip(peer: Option<&Self>) -> IpAddr {
        peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| {
            peer.address().ip()
        })
    }

    /// What its certificate says, if it has one: a node, or why not.
    pub fn certificate(&self) -> Option<&Result<Certified, String>> {
        self.0.certificate.as_ref()
    }

    /// An agent was let in on this connection: it may stay while that stream lives.
    pub fn admit(&self) -> Admission {
        self.0.streams.fetch_add(1, Ordering::Relaxed);
        Admission(self.clone())
    }

    /// What the peer has shown is not good. Its connection is closed if that happens often: looking
    /// at it costs more than showing it.
    pub fn refused(&self) {
        if self.0.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REFUSALS {
            self.cut();
        }
    }

    /// Charges the peer for something that costs as much as so many bytes that it sends.
    pub fn charge(&self, bytes: u32) {
        self.0.costs.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn take_costs(&self) -> u32 {
        self.0.costs.swap(0, Ordering::Relaxed)
    }

    /// There is nothing more to say for now: what is written goes out from now on, and what was
    /// held back with it, unless a stream [waits](Self::wait). Whether it was held back until now.
    pub fn open(&self) -> bool {
        !self.is_waiting() && !self.is_open() && !self.0.open.swap(true, Ordering::Relaxed)
    }

    /// Whether a stream has more to say soon: until then nothing goes out.
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

    /// Who is woken when the connection is cut, and when a stream on it ends.
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

/// A stream of an agent that was let in on a connection.
#[derive(Debug)]
pub struct Admission(Peer);

impl Admission {
    /// The connection.
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
        // Its time without a stream begins.
        self.0.wake();
    }
}
