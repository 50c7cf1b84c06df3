// SPDX-License-Identifier: Apache-2.0

//! Continuous clients of Services while their proxy is replaced: new connections, connections that stay open, and
//! clients with affinity.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::cluster::PATIENT;
use crate::rig::{Answer, Connection, Host, Load, LoadConfig, LoadReport, Protocol};
use crate::wait::wait_for;

/// The deadline of an answer, with a whole control plane on the same processor.
const PROMPT: Duration = Duration::from_secs(20);
/// The answers that count as a load that flows.
const MORE: u64 = 20;
/// The fewest requests of a whole load.
const FEWEST: u64 = 100;

/// A connection that stays open, and the pod at its other end.
struct Kept {
    from: String,
    protocol: Protocol,
    to: SocketAddr,
    connection: Connection,
    name: String,
}

impl Kept {
    /// The name of the pod that answers.
    fn ask(&mut self, when: &str) -> String {
        let answer = self.connection.ask();
        answer
            .unwrap_or_else(|error| panic!("{when}: {self:?}: {error}"))
            .name
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {} -> {}, {}",
            self.protocol, self.from, self.to, self.name
        )
    }
}

/// A client with affinity to one pod, which opens new connections.
#[derive(Debug)]
struct Regular {
    from: Host,
    to: SocketAddr,
    name: String,
}

/// The clients. Every failure of one is a panic that names it.
#[derive(Debug, Default)]
pub struct Clients {
    /// The ways on which connections are kept open.
    ways: Vec<(Host, Protocol, SocketAddr)>,
    loads: Vec<(String, Load)>,
    kept: Vec<Kept>,
    regulars: Vec<Regular>,
}

impl Clients {
    /// Adds a client that sends requests to the targets over new connections, and keeps one connection to each open.
    ///
    /// # Panics
    /// If a target does not answer in time: the first synchronization of a proxy may lack some.
    pub fn add(&mut self, from: &Host, protocol: Protocol, targets: &[SocketAddr]) {
        for to in targets {
            first_answer(from, protocol, *to);
            self.ways.push((from.clone(), protocol, *to));
            self.keep(from, protocol, *to);
        }
        let config = LoadConfig {
            protocol,
            workers: 1,
            limit: u64::MAX,
            // No more connections than a small guest can track.
            pause: Duration::from_millis(100),
            timeout: PROMPT,
        };
        let load = Load::start(from, targets, config).expect("a load");
        self.loads
            .push((format!("{} {protocol:?}", from.name()), load));
    }

    /// Adds a client with affinity.
    ///
    /// # Panics
    /// As [`Self::add`].
    pub fn add_regular(&mut self, from: &Host, to: SocketAddr) {
        let name = first_answer(from, Protocol::Tcp, to).name;
        let from = from.clone();
        self.regulars.push(Regular { from, to, name });
    }

    fn keep(&mut self, from: &Host, protocol: Protocol, to: SocketAddr) {
        let connection = from.connect(protocol, to, PROMPT);
        let mut connection = connection.expect("a connection");
        let name = connection.ask().expect("an answer").name;
        self.kept.push(Kept {
            from: from.name().to_owned(),
            protocol,
            to,
            connection,
            name,
        });
    }

    /// Waits until each load has had more answers, and none has failed.
    ///
    /// # Panics
    /// If a request failed.
    pub fn wait_for_more(&self, when: &str) {
        let before: Vec<_> = self.loads.iter().map(|(_, load)| load.answered()).collect();
        for ((name, load), before) in self.loads.iter().zip(before) {
            wait_for(&format!("{when}: more answers to {name}"), PATIENT, || {
                (load.answered() > before + MORE || load.failed() > 0).then_some(())
            })
            .expect("more answers");
            let failures = load.failures();
            assert!(failures.is_empty(), "{when}: {name}: {failures:?}");
        }
    }

    /// Asserts that all connections are open. A UDP flow that the rules of a kube-proxy began may get another
    /// pod: conntrack forgets it after 30 seconds without a packet.
    ///
    /// # Panics
    /// If one is not.
    pub fn assert_open(&mut self, when: &str) {
        for kept in &mut self.kept {
            let name = kept.ask(when);
            let is_same = name == kept.name || kept.protocol == Protocol::Udp;
            assert!(is_same, "{when}: {kept:?}: {name}");
        }
    }

    /// Asserts that all connections are open, and that clients with affinity have the same pod.
    ///
    /// # Panics
    /// If one is not.
    pub fn assert_kept(&mut self, when: &str) {
        for kept in &mut self.kept {
            let name = kept.ask(when);
            assert_eq!(name, kept.name, "{when}: {kept:?}");
        }
        for Regular { from, to, name } in &self.regulars {
            for _ in 0..3 {
                let answer = from.request(Protocol::Tcp, *to, PROMPT);
                let answer = answer.unwrap_or_else(|error| panic!("{when}: {to}: {error}"));
                assert_eq!(answer.name, *name, "{when}: {} -> {to}", from.name());
            }
        }
    }

    /// Ends the open connections. New ones go on.
    pub fn close(&mut self) {
        self.kept.clear();
    }

    /// Opens them anew.
    ///
    /// # Panics
    /// If one cannot be opened.
    pub fn open(&mut self) {
        self.close();
        for (from, protocol, to) in self.ways.clone() {
            self.keep(&from, protocol, to);
        }
    }

    /// Stops all; returns what each load had, by name.
    ///
    /// # Panics
    /// If a request failed.
    pub fn stop(self) -> Vec<(String, LoadReport)> {
        let stopped = self
            .loads
            .into_iter()
            .map(|(name, load)| (name, load.stop()));
        let stopped: Vec<_> = stopped.collect();
        for (name, report) in &stopped {
            assert!(report.failures.is_empty(), "{name}: {:?}", report.failures);
            assert!(report.requests > FEWEST, "{name}: {}", report.requests);
        }
        stopped
    }
}

/// Waits until a proxy serves a way.
fn first_answer(from: &Host, protocol: Protocol, to: SocketAddr) -> Answer {
    let what = format!("an answer by {protocol:?} from {} to {to}", from.name());
    let ask = || from.request(protocol, to, PROMPT).ok();
    wait_for(&what, PATIENT, ask).expect("an answer")
}
