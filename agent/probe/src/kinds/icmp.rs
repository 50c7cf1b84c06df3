// SPDX-License-Identifier: Apache-2.0

//! ICMP echo requests, all of one source and family over one socket.

mod packet;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use portolan_health::Outcome;
use portolan_model::check::Source;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::fault::{Checked, Stop};
use crate::{Context, Target, socket};

use packet::{Echo, TOKEN};

pub(crate) async fn run(target: &Target, context: &Context) -> Checked<Outcome> {
    let address = target.address.ip();
    let echoes = context.pinger().socket(address, &target.source)?;
    let mut waiting = echoes.expect(address);
    let echo = Echo {
        id: echoes.id,
        sequence: waiting.sequence(),
        token: waiting.token,
    };
    let request = echo.request(address.is_ipv6());
    let to = SocketAddr::new(address, 0);
    if let Err(error) = echoes.socket.send_to(&request, to).await {
        context.pinger().forget(address, &target.source, &echoes);
        // One that cannot be bound any more says that the fault is this machine's.
        context.pinger().socket(address, &target.source)?;
        // The kernel tells errors of earlier requests to connected sockets alone.
        return Err(Stop::of_call(error));
    }
    match (&mut waiting.reply).await {
        Ok(()) => Ok(Outcome::pass()),
        Err(_) => Err(Stop::ours("the socket for ICMP is closed")),
    }
}

/// The sockets for ICMP, by family and source.
#[derive(Debug, Default)]
pub(crate) struct Pinger(Mutex<HashMap<(bool, Source), Arc<Echoes>>>);

impl Pinger {
    fn socket(&self, address: IpAddr, source: &Source) -> Checked<Arc<Echoes>> {
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.is_ipv6(), source.clone());
        if let Some(echoes) = sockets.get(&key)
            && !echoes.reader.is_finished()
        {
            return Ok(Arc::clone(echoes));
        }
        let echoes = Arc::new(Echoes::open(address, source)?);
        sockets.insert(key, Arc::clone(&echoes));
        Ok(echoes)
    }

    /// Has the next request open another socket if this one is bound. An interface is bound by its index, which another
    /// interface of the same name does not have. An address stays bound when the machine has it no more. The socket
    /// ends with the last request that waits for its reply.
    fn forget(&self, address: IpAddr, source: &Source, echoes: &Arc<Echoes>) {
        if source.interface.is_none() && source.address.is_none() {
            return;
        }
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.is_ipv6(), source.clone());
        // Another request may have opened the next one already.
        if sockets
            .get(&key)
            .is_some_and(|known| Arc::ptr_eq(known, echoes))
        {
            sockets.remove(&key);
        }
    }
}

/// The requests without a reply, by their tokens, with the address that the reply must come from.
type Waiters = Mutex<HashMap<u64, (IpAddr, oneshot::Sender<()>)>>;

/// One socket, and the task that reads it.
#[derive(Debug)]
struct Echoes {
    socket: Arc<UdpSocket>,
    /// Identifier of requests. The kernel puts its own in their place if it demultiplexes.
    id: u16,
    next: AtomicU64,
    waiters: Arc<Waiters>,
    reader: AbortOnDropHandle<()>,
}

/// A request that waits for its reply.
struct Waiting<'a> {
    echoes: &'a Echoes,
    token: u64,
    reply: oneshot::Receiver<()>,
}

impl Waiting<'_> {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the low bits are the sequence number"
    )]
    fn sequence(&self) -> u16 {
        self.token as u16
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.echoes.waiters).remove(&self.token);
    }
}

impl Echoes {
    /// Opens a ping socket, of which the kernel gives us our own replies alone, or else a raw one.
    fn open(address: IpAddr, source: &Source) -> Checked<Self> {
        let (domain, protocol) = match address {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let open = |kind: Type| Socket::new(domain, kind.nonblocking(), Some(protocol));
        let (raw, is_raw) = match open(Type::DGRAM) {
            Ok(socket) => (Ok(socket), false),
            Err(_) => (open(Type::RAW), true),
        };
        let raw = raw.map_err(|error| Stop::local("a socket for ICMP", &error))?;
        let mut source = source.clone();
        source.address = source.address.or(Some(socket::any(address)));
        socket::set_source(&SockRef::from(&raw), &source)?;
        // tokio's type fits any socket with datagrams: all that it uses is sendto(2) and recvfrom(2).
        let socket = UdpSocket::from_std(raw.into());
        let socket = Arc::new(socket.map_err(|error| Stop::local("a socket for ICMP", &error))?);
        let waiters = Arc::new(Waiters::default());
        let id = fastrand::u16(..);
        let reader = Reader {
            socket: Arc::clone(&socket),
            waiters: Arc::clone(&waiters),
            id: is_raw.then_some(id),
            has_ip_header: is_raw && address.is_ipv4(),
        };
        Ok(Self {
            socket,
            id,
            next: AtomicU64::new(fastrand::u64(..)),
            waiters,
            reader: AbortOnDropHandle::new(tokio::spawn(reader.run())),
        })
    }

    fn expect(&self, from: IpAddr) -> Waiting<'_> {
        // Neighbours differ in many bits, so that a reply cannot be made up from another.
        let token = self.next.fetch_add(TOKEN, Ordering::Relaxed);
        let (sender, reply) = oneshot::channel();
        lock(&self.waiters).insert(token, (from, sender));
        Waiting {
            echoes: self,
            token,
            reply,
        }
    }
}

/// Reads replies.
struct Reader {
    socket: Arc<UdpSocket>,
    waiters: Arc<Waiters>,
    /// The identifier of our replies; `None` if the kernel knows them.
    id: Option<u16>,
    has_ip_header: bool,
}

impl Reader {
    async fn run(self) {
        let mut buffer = [0; 2_048];
        loop {
            match self.socket.recv_from(&mut buffer).await {
                Ok((length, from)) => self.take(&buffer[..length], from.ip()),
                // An ICMP error about one of the requests. Its probe ends by its timeout.
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    fn take(&self, datagram: &[u8], from: IpAddr) {
        let packet = match self.has_ip_header {
            true => packet::without_ip_header(datagram),
            false => Some(datagram),
        };
        let Some(echo) = packet.and_then(|packet| Echo::reply(packet, from.is_ipv6())) else {
            return;
        };
        if self.id.is_some_and(|id| id != echo.id) {
            return;
        }
        let mut waiters = lock(&self.waiters);
        // A reply from another address leaves the request waiting for its own.
        let is_meant = waiters.get(&echo.token).is_some_and(|(to, _)| *to == from);
        if is_meant && let Some((_, waiter)) = waiters.remove(&echo.token) {
            // The probe may have ended meanwhile.
            let _ = waiter.send(());
        }
    }
}

fn lock(
    waiters: &Waiters,
) -> std::sync::MutexGuard<'_, HashMap<u64, (IpAddr, oneshot::Sender<()>)>> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket for datagrams, which needs no permission.
    async fn echoes() -> Arc<Echoes> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        Arc::new(Echoes {
            socket: Arc::new(socket),
            id: 1,
            next: AtomicU64::new(1),
            waiters: Arc::default(),
            reader: AbortOnDropHandle::new(tokio::spawn(std::future::pending())),
        })
    }

    #[tokio::test]
    async fn a_socket_of_an_interface_that_cannot_send_is_opened_anew() {
        let address = IpAddr::from([127, 0, 0, 1]);
        let of_interface = Source {
            interface: Some("lo".into()),
            ..Source::default()
        };
        let pinger = Pinger::default();
        let put = |source: &Source, echoes: &Arc<Echoes>| {
            let mut sockets = pinger.0.lock().unwrap();
            sockets.insert((false, source.clone()), Arc::clone(echoes));
        };
        let (first, second) = (echoes().await, echoes().await);
        put(&of_interface, &first);
        let known = pinger.socket(address, &of_interface).unwrap();
        assert!(Arc::ptr_eq(&known, &first));
        pinger.forget(address, &of_interface, &first);
        assert!(pinger.0.lock().unwrap().is_empty());
        // A request that fails late takes no newer socket away.
        put(&of_interface, &second);
        pinger.forget(address, &of_interface, &first);
        let known = pinger.socket(address, &of_interface).unwrap();
        assert!(Arc::ptr_eq(&known, &second));
        // One without an interface and without an address serves others.
        put(&Source::default(), &first);
        pinger.forget(address, &Source::default(), &first);
        let known = pinger.socket(address, &Source::default()).unwrap();
        assert!(Arc::ptr_eq(&known, &first));
    }

    #[tokio::test]
    async fn a_source_address_that_is_gone_is_this_machine_s_fault() {
        let context = Context::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        let target = Target {
            source: Source {
                // Of no machine (RFC 5737).
                address: Some([192, 0, 2, 1].into()),
                ..Source::default()
            },
            ..Target::at(SocketAddr::new(address, 0))
        };
        // Sending fails: a datagram over UDP cannot go to port 0.
        let bound = echoes().await;
        let key = (false, target.source.clone());
        context.pinger().0.lock().unwrap().insert(key, bound);
        let outcome = run(&target, &context).await;
        assert!(matches!(outcome, Err(Stop::Ours(_))), "{outcome:?}");
        assert!(context.pinger().0.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_reply_from_another_address_leaves_the_request_waiting() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let waiters = Arc::new(Waiters::default());
        let reader = Reader {
            socket: Arc::new(socket),
            waiters: Arc::clone(&waiters),
            id: None,
            has_ip_header: false,
        };
        let (asked, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (sender, mut replied) = oneshot::channel();
        lock(&waiters).insert(7, (asked, sender));
        let echo = Echo {
            id: 1,
            sequence: 7,
            token: 7,
        };
        let mut reply = echo.request(false);
        reply[0] = 0;
        reader.take(&reply, other);
        assert_eq!(replied.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        reader.take(&reply, asked);
        assert_eq!(replied.try_recv(), Ok(()));
        assert!(lock(&waiters).is_empty());
    }
}
