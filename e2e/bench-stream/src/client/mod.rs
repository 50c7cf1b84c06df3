// SPDX-License-Identifier: Apache-2.0

//! Thousands of thin agents in one thread. Each has its own connection and stream, and decodes only
//! the framing and Commits, so that agents are cheap compared with the server.

mod agent;
mod arrivals;
mod h2;
mod head;
mod io;
mod message;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use portolan_proto::buckets::bucket_hashes;
use portolan_proto::convert::encode_key;
use rustix::event::epoll;
use rustls::ClientConfig;

use crate::usage::{now_ns, pin, raise_descriptors};
use crate::words::{Connect, Connected, Done, Order, Speak};
use crate::world::{Size, World, node_name, record_key};
use agent::{Held, Link, Outcome};
use arrivals::Arrivals;
pub(crate) use io::VALID;

/// The epoll data of the driver's events.
const DRIVER: u64 = u64::MAX;

/// The highest number of agents that wait for their table: the length of a server's accept queue.
const WAITING: usize = 4_000;

/// The size of the read buffer, in bytes.
const READ_BYTES: usize = 256 << 10;

/// Arguments of the agents' process.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    #[command(flatten)]
    size: Size,
    /// The processor to run on
    #[arg(long)]
    cpu: usize,
    /// Directory of the authority that signs agents' certificates
    #[arg(long)]
    tls_dir: Option<PathBuf>,
}

/// Follows the driver's orders until it closes its end.
pub(crate) fn run(args: ClientArgs) -> Result<()> {
    pin(args.cpu)?;
    raise_descriptors()?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let stdin = std::io::stdin();
    let driver = epoll::EventData::new_u64(DRIVER);
    epoll::add(&epoll, &stdin, driver, epoll::EventFlags::IN)?;
    let mut agents = Agents {
        size: args.size,
        tls_dir: args.tls_dir,
        epoll,
        agents: Vec::new(),
        kept: Vec::new(),
        credentials: Vec::new(),
        buckets: HashMap::new(),
        arrivals: Arrivals::default(),
        connecting: None,
        reach: None,
    };
    let mut buffer = vec![0; READ_BYTES];
    let mut orders = Vec::new();
    let mut events = Vec::with_capacity(1_024);
    loop {
        events.clear();
        epoll::wait(
            &agents.epoll,
            rustix::buffer::spare_capacity(&mut events),
            None,
        )?;
        for event in &events {
            let number = event.data.u64();
            if number != DRIVER {
                agents.read(usize::try_from(number)?, &mut buffer)?;
                continue;
            }
            let count = stdin.lock().read(&mut buffer[..4_096])?;
            if count == 0 {
                return Ok(());
            }
            orders.extend_from_slice(&buffer[..count]);
            while let Some(end) = orders.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = orders.drain(..=end).collect();
                agents.follow(serde_json::from_slice(&line)?)?;
            }
        }
        agents.go_on()?;
    }
}

struct Agents {
    size: Size,
    tls_dir: Option<PathBuf>,
    epoll: OwnedFd,
    agents: Vec<Agent>,
    /// The agents' state at [`Order::Keep`].
    kept: Vec<Held>,
    credentials: Vec<Arc<ClientConfig>>,
    /// The hashes of the initial cluster's buckets, by number of buckets.
    buckets: HashMap<u32, Vec<u8>>,
    arrivals: Arrivals,
    connecting: Option<Connecting>,
    /// The revision that the driver waits for.
    reach: Option<u64>,
}

#[derive(Default)]
struct Agent {
    held: Held,
    link: Option<Link>,
}

/// Progress of connecting agents.
struct Connecting {
    how: Connect,
    begun_ns: u64,
    opened: usize,
    synced: usize,
    asked: u32,
}

impl Agents {
    fn follow(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Connect(how) => self.connect(how)?,
            Order::Reach(revision) => self.reach = Some(revision),
            Order::Arrivals { first, last } => {
                let all = |revision| self.arrivals.all(revision, self.agents.len());
                let arrivals: Option<Vec<_>> = (first..=last).map(all).collect();
                say(&Done::Arrivals(arrivals.context("not all have arrived")?))?;
            }
            Order::Leave => {
                self.agents.iter_mut().for_each(|agent| agent.link = None);
                say(&Done::Left)?;
            }
            Order::Keep => {
                self.kept = self.agents.iter().map(|agent| agent.held.clone()).collect();
                say(&Done::Kept)?;
            }
            Order::Restore => {
                for (agent, held) in self.agents.iter_mut().zip(&self.kept) {
                    agent.held = held.clone();
                }
                say(&Done::Restored)?;
            }
        }
        Ok(())
    }

    fn connect(&mut self, how: Connect) -> Result<()> {
        ensure!(how.agents <= self.size.nodes, "more agents than nodes");
        self.agents.resize_with(how.agents as usize, Agent::default);
        if !how.resume {
            self.agents
                .iter_mut()
                .for_each(|agent| agent.held = Held::default());
        }
        if how.speak == Speak::Tls {
            let dir = self.tls_dir.as_deref().context("--tls-dir")?;
            for node in self.credentials.len()..self.agents.len() {
                let config = io::config(dir, &node_name(u32::try_from(node)?))?;
                self.credentials.push(config);
            }
        }
        self.connecting = Some(Connecting {
            how,
            begun_ns: now_ns(),
            opened: 0,
            synced: 0,
            asked: 0,
        });
        self.go_on()
    }

    /// Opens connections up to the limit, and answers the driver once its order is fulfilled.
    fn go_on(&mut self) -> Result<()> {
        if let Some(connecting) = &mut self.connecting {
            let how = &connecting.how;
            while connecting.opened < self.agents.len()
                && connecting.opened - connecting.synced < WAITING
            {
                let number = connecting.opened;
                let agent = &mut self.agents[number];
                let tls = (how.speak == Speak::Tls).then(|| Arc::clone(&self.credentials[number]));
                let node = node_name(u32::try_from(number)?);
                let link = Link::open(how.port, how.speak, tls, how.acks, &node, &agent.held)?;
                let data = epoll::EventData::new_u64(number as u64);
                epoll::add(&self.epoll, &link.io, data, epoll::EventFlags::IN)?;
                connecting.synced += usize::from(link.synced);
                connecting.opened += 1;
                agent.link = Some(link);
            }
            if connecting.synced == self.agents.len() {
                self.connected()?;
            }
        }
        if let Some(revision) = self.reach
            && let Some(at_ns) = self.arrivals.all(revision, self.agents.len())
        {
            self.reach = None;
            let links = self.agents.iter().filter_map(|agent| agent.link.as_ref());
            let received = links.map(|link| link.received).sum();
            say(&Done::Reached { at_ns, received })?;
        }
        Ok(())
    }

    fn connected(&mut self) -> Result<()> {
        let Some(connecting) = self.connecting.take() else {
            return Ok(());
        };
        let links = || self.agents.iter().filter_map(|agent| agent.link.as_ref());
        let revisions = self.agents.iter().map(|agent| agent.held.revision);
        let revision = revisions.min().unwrap_or_default();
        let connected = Connected {
            took_ns: now_ns() - connecting.begun_ns,
            received: links().map(|link| link.received).sum(),
            sent: links().map(|link| link.sent).sum(),
            revision,
            asked: connecting.asked,
        };
        self.arrivals.begin(revision);
        say(&Done::Connected(connected))
    }

    fn read(&mut self, number: usize, buffer: &mut [u8]) -> Result<()> {
        let agent = &mut self.agents[number];
        // The link may have been closed after the event was seen.
        let Some(link) = &mut agent.link else {
            return Ok(());
        };
        let Outcome {
            reached,
            synced,
            asked,
            ended,
        } = link.read(buffer, &mut agent.held)?;
        if let Some(why) = ended {
            bail!("the stream of agent {number} has ended: {why}");
        }
        match &mut self.connecting {
            Some(connecting) => connecting.synced += usize::from(synced),
            None => {
                if let Some((from, to)) = reached {
                    self.arrivals.reached(from, to, now_ns());
                }
            }
        }
        if let Some(count) = asked {
            if let Some(connecting) = &mut self.connecting {
                connecting.asked += 1;
            }
            let hashes = self.buckets(count)?;
            if let Some(link) = &mut self.agents[number].link {
                link.answer(hashes)?;
            }
        }
        Ok(())
    }

    /// The bucket hashes of the initial cluster. The driver ensures that agents asked for them have
    /// it.
    fn buckets(&mut self, count: u32) -> Result<Vec<u8>> {
        if !self.buckets.contains_key(&count) {
            let world = World::new(self.size)?;
            let services = (0..self.size.services).map(|service| {
                let hash = world.record(service).content_hash();
                (encode_key(&record_key(service)), hash)
            });
            let records: Vec<_> = services.collect();
            let records = records.iter().map(|(key, hash)| (key, *hash));
            self.buckets.insert(count, bucket_hashes(records, count));
        }
        Ok(self.buckets[&count].clone())
    }
}

fn say(done: &Done) -> Result<()> {
    writeln!(std::io::stdout(), "{}", serde_json::to_string(done)?)?;
    Ok(())
}
