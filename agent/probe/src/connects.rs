// SPDX-License-Identifier: Apache-2.0

//! Connections that are made and nothing else, looked at together.
//!
//! Waiting for one with epoll takes as many system calls as making and closing it. Most are there within a
//! millisecond: one call of `poll(2)` tells about all that began together. The others are waited for one by one.
//! A socket whose connection was made is used again: `connect(2)` with `AF_UNSPEC` resets the connection, as closing
//! would, and three system calls are saved.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use portolan_model::check::Source;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::Socket;
use tokio::time::sleep;

use crate::Target;
use crate::fault::Checked;
use crate::socket::{begin, connected, open};

/// The time from the first connection of a batch until all of them are looked at.
const PAUSE: Duration = Duration::from_millis(1);
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

type Pause = Shared<BoxFuture<'static, ()>>;

/// Connections under way, and sockets for the next ones.
#[derive(Debug, Default)]
pub(crate) struct Connects {
    /// New connections join it until it is looked at.
    last: Mutex<Arc<Batch>>,
    idle: Mutex<Idle>,
}

/// Sockets without a connection, at most as many as were used at one time.
#[derive(Debug, Default)]
struct Idle {
    v4: Vec<Arc<Socket>>,
    v6: Vec<Arc<Socket>>,
}

/// Connections that began about the same time.
#[derive(Default)]
struct Batch(Mutex<Places>);

#[derive(Default)]
struct Places {
    /// The pause before the sockets are looked at; `None` for a batch that nothing joins. All wait by one timer.
    pause: Option<Pause>,
    /// A socket is gone with its waiter.
    sockets: Vec<Weak<Socket>>,
    /// The state of each socket at the look; empty before it.
    seen: Vec<PollFlags>,
}

impl Connects {
    /// Makes a connection, and resets it.
    pub(crate) async fn connect(&self, target: &Target) -> Checked<()> {
        let socket = self.socket(target)?;
        begin(&socket, target)?;
        let (batch, place, pause) = self.join(&socket);
        pause.await;
        let seen = batch.look(place)?;
        if seen == PollFlags::OUT {
            self.reset(socket, target);
            return Ok(());
        }
        if let Some(error) = socket.take_error()? {
            return made_or(error);
        }
        // Nobody else has it any more.
        let socket = Arc::into_inner(socket).ok_or(io::Error::from(io::ErrorKind::ResourceBusy))?;
        connected(socket).await.map_or_else(made_or, |_| Ok(()))
    }

    /// A socket that closes by RST.
    fn socket(&self, target: &Target) -> Checked<Arc<Socket>> {
        let idle = lock(&self.idle).of(target).and_then(Vec::pop);
        idle.map_or_else(|| open(target, true).map(Arc::new), Ok)
    }

    /// Resets a connection, and keeps its socket if it can be used again.
    fn reset(&self, socket: Arc<Socket>, target: &Target) {
        if let Some(idle) = lock(&self.idle).of(target)
            && rustix::net::connect_unspec(&socket).is_ok()
        {
            idle.push(socket);
        }
    }

    /// Has a socket join the last batch, or the next. Returns its place, and the pause until the batch is
    /// looked at.
    fn join(&self, socket: &Arc<Socket>) -> (Arc<Batch>, usize, Pause) {
        let mut last = lock(&self.last);
        if lock(&last.0).is_over() {
            *last = Arc::default();
        }
        let mut places = lock(&last.0);
        let begin = || sleep(PAUSE).boxed().shared();
        let pause = places.pause.get_or_insert_with(begin).clone();
        let place = places.sockets.len();
        places.sockets.push(Arc::downgrade(socket));
        drop(places);
        (Arc::clone(&last), place, pause)
    }
}

impl Idle {
    /// The sockets for a target. None for one with a source: its sockets are bound.
    fn of(&mut self, target: &Target) -> Option<&mut Vec<Arc<Socket>>> {
        let sockets = match target.address.is_ipv4() {
            true => &mut self.v4,
            false => &mut self.v6,
        };
        (target.source == Source::default()).then_some(sockets)
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch({} sockets)", lock(&self.0).sockets.len())
    }
}

impl Batch {
    /// Returns the state of a socket: empty as long as it connects. The first call looks at all.
    fn look(&self, place: usize) -> io::Result<PollFlags> {
        let mut places = lock(&self.0);
        if !places.is_over() {
            places.seen = look_at(&places.sockets)?;
        }
        let seen = places.seen.get(place).copied();
        Ok(seen.unwrap_or(PollFlags::empty()))
    }
}

impl Places {
    /// Returns `true` if the sockets were looked at.
    fn is_over(&self) -> bool {
        !self.seen.is_empty()
    }
}

/// Looks at sockets with one system call.
fn look_at(sockets: &[Weak<Socket>]) -> io::Result<Vec<PollFlags>> {
    let sockets: Vec<_> = sockets.iter().map(Weak::upgrade).collect();
    let there = sockets.iter().flatten();
    let mut polled: Vec<_> = there
        .map(|socket| PollFd::new(socket, PollFlags::OUT))
        .collect();
    poll(&mut polled, Some(&AT_ONCE))?;
    let mut seen = polled.iter().map(PollFd::revents);
    let found = |socket: &Option<_>| socket.as_ref().and_then(|_| seen.next());
    let found = sockets.iter().map(found);
    Ok(found
        .map(|flags| flags.unwrap_or(PollFlags::empty()))
        .collect())
}

/// A connection that the server has reset was made: before one, its answer is a refusal. A reset after the server has
/// closed its side is a broken pipe. One that comes later is not seen.
fn made_or(error: io::Error) -> Checked<()> {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(error.into()),
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::AsRawFd as _;

    use socket2::{Domain, SockAddr, Type};

    use super::*;
    use crate::fault::Stop;

    fn listen() -> (TcpListener, Target) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::at(listener.local_addr().unwrap());
        (listener, target)
    }

    #[tokio::test]
    async fn each_of_a_batch_has_its_own_result() {
        let (_listener, open) = listen();
        let (_, closed) = listen();
        let connects = Connects::default();
        let (first, second, third) = tokio::join!(
            connects.connect(&open),
            connects.connect(&closed),
            connects.connect(&open),
        );
        assert_eq!(second, Err(Stop::fails("connection refused")));
        assert_eq!((first, third), (Ok(()), Ok(())));
    }

    #[test]
    fn a_socket_is_used_again_after_its_connection_was_reset() {
        let connects = Connects::default();
        let mut sockets = BTreeSet::new();
        // Servers of several addresses: a connection to one leaves nothing behind for the next.
        for _ in 0..3 {
            let (listener, target) = listen();
            let socket = connects.socket(&target).unwrap();
            begin(&socket, &target).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            // The connection is there on this side too: the server has its last packet.
            connects.reset(socket, &target);
            let end = stream.read(&mut [0]).unwrap_err();
            assert_eq!(end.kind(), io::ErrorKind::ConnectionReset);
            let idle = lock(&connects.idle);
            assert_eq!(idle.v4.len(), 1);
            sockets.insert(idle.v4[0].as_raw_fd());
        }
        assert_eq!(sockets.len(), 1);
    }

    #[tokio::test]
    async fn a_refused_connection_fails_with_a_socket_that_was_used_before() {
        let connects = Connects::default();
        let (_listener, target) = listen();
        connects.connect(&target).await.unwrap();
        let (_, closed) = listen();
        let refused = connects.connect(&closed).await;
        assert_eq!(refused, Err(Stop::fails("connection refused")));
        assert_eq!(connects.connect(&target).await, Ok(()));
    }

    #[test]
    fn a_connection_that_the_server_reset_was_made() {
        let reset = |kind| made_or(io::Error::from(kind));
        assert_eq!(reset(io::ErrorKind::ConnectionReset), Ok(()));
        assert_eq!(reset(io::ErrorKind::BrokenPipe), Ok(()));
        let refused = reset(io::ErrorKind::ConnectionRefused);
        assert_eq!(refused, Err(Stop::fails("connection refused")));
    }

    #[tokio::test]
    async fn a_server_that_resets_at_once_passes() {
        let (listener, target) = listen();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let linger = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            linger.unwrap();
        });
        assert_eq!(Connects::default().connect(&target).await, Ok(()));
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_socket_with_a_source_is_not_kept() {
        let (listener, mut target) = listen();
        target.source.address = Some("127.0.0.9".parse().unwrap());
        let connects = Connects::default();
        connects.connect(&target).await.unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(Some(from.ip()), target.source.address);
        assert!(lock(&connects.idle).v4.is_empty());
    }

    #[tokio::test]
    async fn a_connection_that_takes_longer_is_waited_for() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        listener.bind(&SockAddr::from(any)).unwrap();
        // One connection fills the queue. The packets of the next one are dropped until there is room.
        listener.listen(0).unwrap();
        let target = Target::at(listener.local_addr().unwrap().as_socket().unwrap());
        let connects = Arc::new(Connects::default());
        connects.connect(&target).await.unwrap();
        let late = tokio::spawn({
            let connects = Arc::clone(&connects);
            async move { connects.connect(&target).await }
        });
        let is_over = || lock(&lock(&connects.last).0).is_over();
        // The batch of the first one is over, too, until the second one has its own.
        tokio::task::yield_now().await;
        while !is_over() {
            tokio::task::yield_now().await;
        }
        assert!(!late.is_finished());
        listener.accept().unwrap();
        assert_eq!(late.await.unwrap(), Ok(()));
    }
}
