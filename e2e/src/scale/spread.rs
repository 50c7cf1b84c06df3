// SPDX-License-Identifier: Apache-2.0

//! The way of one change: each process works it in, sends it to the streams below it one after another, and each
//! stream that ends at a relay makes that relay begin.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Costs of one change, in nanoseconds of processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// The root makes the change and encodes it, whatever the number of its streams.
    pub work_in_ns: u64,
    /// A relay takes it in, checks it and publishes it, whatever the number of its streams.
    pub relay_in_ns: u64,
    /// A relay waits for further changes before it publishes; no processor time.
    pub relay_wait_ns: u64,
    /// A process sends it to one stream.
    pub send_ns: u64,
    /// An agent takes it in. On a machine of its own it adds to the delay; on a shared one to the load.
    pub agent_ns: u64,
    /// The network, and the wake-up of the other side.
    pub hop_ns: u64,
}

/// Numbers of streams of each tier of processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Streams of each process of a tier to the next one, from the root on: `[2, 4]` is two relays with four each.
    pub relays: Vec<u32>,
    /// Agents of each relay of the last tier; of the root without relays.
    pub agents: u32,
}

impl Shape {
    /// Number of all agents.
    #[must_use]
    pub fn agents(&self) -> u64 {
        let relays: u64 = self.relays.iter().map(|each| u64::from(*each)).product();
        relays * u64::from(self.agents)
    }

    /// Streams of a process of a tier, of which 0 is the root's.
    fn fan_out(&self, tier: usize) -> u32 {
        self.relays.get(tier).copied().unwrap_or(self.agents)
    }
}

/// Where the processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machines {
    /// Each relay, and each agent, on a machine of its own. A process uses one processor for a change.
    Own,
    /// All on one machine with this many processors, as in a benchmark. Agents share them too.
    Shared(usize),
}

/// When agents have a change, in nanoseconds since it was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The median agent.
    pub median_ns: u64,
    /// The last agent.
    pub last_ns: u64,
    /// Processor time of the root.
    pub root_ns: u64,
    /// Processor time of all relays.
    pub relays_ns: u64,
}

/// A process that has the change from a time on: a relay, or the agents of one relay together.
type Ready = Reverse<(u64, usize, Job)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    /// A process of this tier sends.
    Send,
    /// One agent takes the change in.
    TakeIn,
}

/// Follows one change to all agents.
#[must_use]
pub fn spread(shape: &Shape, costs: Costs, machines: Machines) -> Arrival {
    let mut run = Run {
        shape,
        costs,
        shared: matches!(machines, Machines::Shared(_)),
        free: match machines {
            Machines::Own => Vec::new(),
            Machines::Shared(processors) => vec![0; processors.max(1)],
        },
        ready: BinaryHeap::from([Reverse((0, 0, Job::Send))]),
        arrivals: Vec::new(),
        busy: [0; 2],
    };
    while let Some(Reverse((at, tier, job))) = run.ready.pop() {
        match job {
            Job::Send => run.send(at, tier),
            Job::TakeIn => run.take_in(at),
        }
    }
    run.arrivals.sort_unstable();
    let last = run.arrivals.len().saturating_sub(1);
    let at = |index: usize| run.arrivals.get(index).copied().unwrap_or_default();
    Arrival {
        median_ns: at(last / 2),
        last_ns: at(last),
        root_ns: run.busy[0],
        relays_ns: run.busy[1],
    }
}

struct Run<'a> {
    shape: &'a Shape,
    costs: Costs,
    shared: bool,
    /// When each shared processor is free.
    free: Vec<u64>,
    ready: BinaryHeap<Ready>,
    arrivals: Vec<u64>,
    /// Processor time of the root, and of all relays.
    busy: [u64; 2],
}

impl Run<'_> {
    /// The time at which a job that is ready begins: at once, or when the first processor is free.
    fn begin(&mut self, at: u64, takes: u64) -> u64 {
        let Some(first) = self.free.iter_mut().min() else {
            return at;
        };
        let begins = at.max(*first);
        *first = begins + takes;
        begins
    }

    fn send(&mut self, at: u64, tier: usize) {
        let Costs {
            work_in_ns,
            relay_in_ns,
            relay_wait_ns,
            send_ns,
            hop_ns,
            ..
        } = self.costs;
        let (work_in_ns, wait_ns) = match tier {
            0 => (work_in_ns, 0),
            _ => (relay_in_ns, relay_wait_ns),
        };
        let streams = u64::from(self.shape.fan_out(tier));
        let takes = work_in_ns + streams * send_ns;
        let begins = self.begin(at + wait_ns, takes);
        self.busy[usize::from(tier > 0)] += takes;
        let job = match tier < self.shape.relays.len() {
            true => Job::Send,
            false => Job::TakeIn,
        };
        for stream in 1..=streams {
            let arrives = begins + work_in_ns + stream * send_ns + hop_ns;
            self.ready.push(Reverse((arrives, tier + 1, job)));
        }
    }

    fn take_in(&mut self, at: u64) {
        let takes = self.costs.agent_ns;
        let begins = match self.shared {
            true => self.begin(at, takes),
            false => at,
        };
        self.arrivals.push(begins + takes);
    }
}
