// SPDX-License-Identifier: Apache-2.0

//! Echo servers: answer every line (TCP, SCTP) or datagram (UDP) with `<host name> <source address seen>`.
//!
//! TCP connections stay open, a line for a line, until the client closes or the server stops.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use super::host::{Family, Host, Protocol};
use super::sctp;

/// A running server. Dropping it closes its sockets and its connections.
#[derive(Debug)]
pub struct EchoServer {
    shared: Arc<Shared>,
    sockets: Vec<Socket>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    stopped: AtomicBool,
    served: AtomicU64,
    /// The number of the next connection, over all listeners.
    numbers: AtomicU64,
    /// Open connections by number, which are closed when the server stops.
    connections: Mutex<HashMap<u64, TcpStream>>,
}

#[derive(Clone, Debug)]
enum Socket {
    Stream(Arc<TcpListener>),
    Udp(Arc<UdpSocket>),
}

impl EchoServer {
    pub(super) fn start(host: &Host, protocol: Protocol, port: u16) -> Result<Self> {
        let sockets = host
            .namespace()
            .run(|| bind(host, protocol, port))?
            .with_context(|| format!("serve {protocol:?} {port} on {}", host.name()))?;
        let shared = Arc::new(Shared {
            name: host.name().into(),
            stopped: AtomicBool::new(false),
            served: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let threads = sockets
            .iter()
            .map(|socket| {
                let (socket, shared) = (socket.clone(), Arc::clone(&shared));
                thread::spawn(move || match socket {
                    Socket::Stream(listener) => accept(&listener, &shared),
                    Socket::Udp(socket) => answer_datagrams(&socket, &shared),
                })
            })
            .collect();
        Ok(Self {
            shared,
            sockets,
            threads,
        })
    }

    /// The number of requests answered.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.shared.served.load(Ordering::Relaxed)
    }

    /// The number of open TCP connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.lock().len()
    }

    /// Stops it; from then on the port is closed.
    pub fn stop(self) {}
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        for socket in self.sockets.drain(..) {
            // Shutting a listener or an unconnected socket down wakes the thread that waits on it; for the
            // latter the call fails all the same.
            let _ = match &socket {
                Socket::Stream(listener) => {
                    rustix::net::shutdown(listener, rustix::net::Shutdown::Both)
                }
                Socket::Udp(socket) => rustix::net::shutdown(socket, rustix::net::Shutdown::Both),
            };
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for connection in self.shared.lock().values() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn answer(&self, source: SocketAddr) -> String {
        self.served.fetch_add(1, Ordering::Relaxed);
        format!("{} {}\n", self.name, seen(source))
    }
}

/// A dual-stack socket reports IPv4 sources as mapped addresses.
fn seen(source: SocketAddr) -> IpAddr {
    source.ip().to_canonical()
}

fn bind(host: &Host, protocol: Protocol, port: u16) -> Result<Vec<Socket>> {
    match protocol {
        Protocol::Tcp => {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
            Ok(vec![Socket::Stream(Arc::new(listener))])
        }
        Protocol::Sctp => Family::ALL
            .iter()
            .map(|family| {
                let listener = sctp::listen(host.socket(*family, port))?;
                Ok(Socket::Stream(Arc::new(listener)))
            })
            .collect(),
        // A datagram socket bound to no address would answer from whichever the route prefers.
        Protocol::Udp => Family::ALL
            .iter()
            .map(|family| {
                let socket = UdpSocket::bind(host.socket(*family, port))?;
                Ok(Socket::Udp(Arc::new(socket)))
            })
            .collect(),
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        let accepted = listener.accept();
        if shared.is_stopped() {
            return;
        }
        let Ok((stream, source)) = accepted else {
            continue;
        };
        let number = shared.numbers.fetch_add(1, Ordering::Relaxed);
        if let Ok(copy) = stream.try_clone() {
            shared.lock().insert(number, copy);
        }
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // The client notices the end of the connection first.
            let _ = answer_lines(stream, source, &shared);
            shared.lock().remove(&number);
        });
    }
}

fn answer_lines(stream: TcpStream, source: SocketAddr, shared: &Shared) -> std::io::Result<()> {
    // SCTP has no such option, and its lines are messages anyway.
    let _ = stream.set_nodelay(true);
    // An accepted socket inherits the time limit of its listener.
    stream.set_read_timeout(None)?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 0 {
        writer.write_all(shared.answer(source).as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn answer_datagrams(socket: &UdpSocket, shared: &Shared) {
    let mut buffer = [0; 512];
    while !shared.is_stopped() {
        if let Ok((_, source)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(shared.answer(source).as_bytes(), source);
        }
    }
}
