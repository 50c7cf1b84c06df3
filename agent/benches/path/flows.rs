// SPDX-License-Identifier: Apache-2.0

//! Flows from a client pod to server pods. One thread has the sockets of both sides: packets between namespaces are
//! handled by the processor that sends them, so that the time of a round is its processor time and nothing waits for
//! a scheduler.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::rig::Pod;
use rustix::net::sockopt::set_socket_linger;

/// The port of Services and of servers.
pub(crate) const PORT: u16 = 8080;
/// New flows of a round: with 8 rounds, each UDP flow has a source port of its own. A tick of the clock is some hundredths
/// of a round.
const FLOWS: u16 = 5_000;
/// Packets of the open flow of a round.
const PACKETS: u32 = 20_000;
/// Flows between two looks at the servers' sockets, far below what their buffers hold.
const BATCH: u16 = 50;
/// The first source port of a round's UDP flows. Each flow has a port that no earlier one had.
const FIRST_PORT: u16 = 2_000;
/// The time of one tick of `/proc/stat`, `USER_HZ`.
const TICK: Duration = Duration::from_millis(10);
/// The deadline of packets on their way.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kind of traffic of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A TCP connection is made and reset.
    Tcp,
    /// One datagram from a new source port.
    Udp,
    /// One datagram more of an open flow.
    Open,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Open];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Open => "open",
        }
    }
}

/// The costs of one flow or packet, means over a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Elapsed seconds.
    pub(crate) elapsed: f64,
    /// Seconds of all processors, those of interrupts included.
    pub(crate) processors: f64,
}

/// The servers' sockets.
#[derive(Debug)]
pub(crate) struct Servers {
    tcp: Vec<TcpListener>,
    udp: Vec<UdpSocket>,
}

impl Servers {
    pub(crate) fn bind(pods: &[Pod]) -> Result<Self> {
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for pod in pods {
            let address = SocketAddr::new(pod.v4().into(), PORT);
            let listener = pod.namespace().run(|| TcpListener::bind(address))??;
            let socket = pod.namespace().run(|| UdpSocket::bind(address))??;
            listener.set_nonblocking(true)?;
            socket.set_nonblocking(true)?;
            tcp.push(listener);
            udp.push(socket);
        }
        Ok(Self { tcp, udp })
    }

    /// Takes what has arrived: connections, which are closed, or datagrams. Returns their number.
    fn take(&self, kind: Kind) -> Result<u32> {
        let mut taken = 0;
        let mut buffer = [0; 16];
        let mut look = |took: std::io::Result<()>| match took {
            Ok(()) => {
                taken += 1;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            // The client has reset it already.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(true),
            Err(error) => Err(error),
        };
        match kind {
            Kind::Tcp => {
                for listener in &self.tcp {
                    while look(listener.accept().map(drop))? {}
                }
            }
            Kind::Udp | Kind::Open => {
                for socket in &self.udp {
                    while look(socket.recv(&mut buffer).map(drop))? {}
                }
            }
        }
        Ok(taken)
    }

    /// Waits until all of a number have arrived.
    fn take_all(&self, kind: Kind, mut missing: u32) -> Result<()> {
        let begin = Instant::now();
        while missing > 0 {
            missing = missing.saturating_sub(self.take(kind)?);
            ensure!(begin.elapsed() < PATIENCE, "{missing} of {kind:?} are lost");
        }
        Ok(())
    }
}

/// The client's side, in its namespace.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    pub(crate) address: IpAddr,
    pub(crate) target: SocketAddr,
    pub(crate) servers: &'a Servers,
    /// The number of UDP rounds before this one.
    pub(crate) udp_rounds: u16,
}

impl Client<'_> {
    /// Plays a round. Called in the client's namespace.
    pub(crate) fn play(&self, kind: Kind) -> Result<Round> {
        match kind {
            Kind::Tcp => measure(FLOWS.into(), || self.connections()),
            Kind::Udp => measure(FLOWS.into(), || self.datagrams()),
            Kind::Open => {
                let socket = UdpSocket::bind((self.address, 0))?;
                socket.connect(self.target)?;
                // The flow's first packet is none of an open flow.
                socket.send(b"first")?;
                self.servers.take_all(kind, 1)?;
                measure(PACKETS, || self.packets(&socket))
            }
        }
    }

    fn connections(&self) -> Result<()> {
        for number in 1..=FLOWS {
            let stream = TcpStream::connect(self.target).context("connect")?;
            set_socket_linger(&stream, Some(Duration::ZERO))?;
            if number % BATCH == 0 || number == FLOWS {
                // Those before are reset, and may be there or not.
                self.servers.take(Kind::Tcp)?;
            }
        }
        Ok(())
    }

    fn datagrams(&self) -> Result<()> {
        let first = FIRST_PORT + FLOWS * self.udp_rounds;
        let mut missing = 0;
        for port in first..first + FLOWS {
            let socket = UdpSocket::bind((self.address, port)).with_context(|| port.to_string())?;
            socket.send_to(b"hello", self.target)?;
            missing += 1;
            if missing == u32::from(BATCH) {
                self.servers.take_all(Kind::Udp, missing)?;
                missing = 0;
            }
        }
        self.servers.take_all(Kind::Udp, missing)
    }

    fn packets(&self, socket: &UdpSocket) -> Result<()> {
        let batch = u32::from(BATCH);
        for _ in 0..PACKETS / batch {
            for _ in 0..batch {
                socket.send(b"hello")?;
            }
            self.servers.take_all(Kind::Open, batch)?;
        }
        Ok(())
    }
}

fn measure(count: u32, work: impl FnOnce() -> Result<()>) -> Result<Round> {
    let (begin, processors) = (Instant::now(), processor_time()?);
    work()?;
    let elapsed = begin.elapsed().as_secs_f64();
    let processors = processor_time()?.saturating_sub(processors).as_secs_f64();
    Ok(Round {
        elapsed: elapsed / f64::from(count),
        processors: processors / f64::from(count),
    })
}

/// The time in which processors were not idle, from `/proc/stat` (proc_stat(5)): user, nice, system, irq, softirq.
fn processor_time() -> Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let ticks: Vec<u32> = line
        .split_whitespace()
        .skip(1)
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let busy = [0, 1, 2, 5, 6].into_iter().filter_map(|at| ticks.get(at));
    Ok(TICK * busy.sum::<u32>())
}
