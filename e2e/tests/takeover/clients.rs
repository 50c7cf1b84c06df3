// SPDX-License-Identifier: Apache-2.0

//! Continuous clients of the Services: new connections and connections that stay open.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use portolan_e2e::ask::address;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::rig::{Connection, Family, Host, Load, LoadConfig, Protocol};
use portolan_e2e::wait::wait_for;

use crate::world::{BALANCED, NODE_PORT, STICKY, STICKY_NODE_PORT, WEB, World};

/// The deadline of an answer, with a whole control plane on the same processor.
const PROMPT: Duration = Duration::from_secs(20);

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
struct Regular {
    from: Host,
    to: SocketAddr,
    name: String,
}

pub(crate) struct Clients {
    loads: Vec<(String, Load)>,
    kept: Vec<Kept>,
    regulars: Vec<Regular>,
}

impl Clients {
    pub(crate) fn start(world: &World) -> Self {
        let (node, client) = (world.node(0), world.cluster.rig.client());
        // A separate client: IPVS cannot distinguish two UDP Services with the same endpoints that
        // one port sends requests to.
        let other = world.other_client();
        let web = Family::ALL.map(|family| address(WEB, family, 80));
        let node_port = Family::ALL.map(|family| node.socket(family, NODE_PORT));
        let balanced = Family::ALL.map(|family| address(BALANCED, family, 80));
        let ways: [(&Host, [SocketAddr; 2]); 4] = [
            (&world.visitor.pod, web),
            (client, node_port),
            (other, balanced),
            (node, web),
        ];
        let mut this = Self {
            loads: Vec::new(),
            kept: Vec::new(),
            regulars: Vec::new(),
        };
        for (from, targets) in &ways {
            for protocol in Protocol::ALL {
                for to in targets {
                    wait_for_answer(from, protocol, *to);
                }
            }
        }
        for (from, targets) in ways {
            for protocol in Protocol::ALL {
                this.load(from, protocol, &targets);
                for to in targets {
                    this.keep(from, protocol, to);
                }
            }
        }
        // Not the node itself: its source is the virtual address with kube-proxy but its own with
        // Portolan, so it would count as another client.
        for family in Family::ALL {
            this.come_regularly(&world.visitor.pod, address(STICKY, family, 80));
            this.come_regularly(client, node.socket(family, STICKY_NODE_PORT));
        }
        this
    }

    fn load(&mut self, from: &Host, protocol: Protocol, targets: &[SocketAddr]) {
        let config = LoadConfig {
            protocol,
            workers: 1,
            limit: u64::MAX,
            // No more connections than a small guest can track.
            pause: Duration::from_millis(100),
            timeout: PROMPT,
        };
        let load = Load::start(from, targets, config).unwrap();
        self.loads
            .push((format!("{} {protocol:?}", from.name()), load));
    }

    fn keep(&mut self, from: &Host, protocol: Protocol, to: SocketAddr) {
        let mut connection = from.connect(protocol, to, PROMPT).unwrap();
        let name = connection.ask().unwrap().name;
        self.kept.push(Kept {
            from: from.name().to_owned(),
            protocol,
            to,
            connection,
            name,
        });
    }

    fn come_regularly(&mut self, from: &Host, to: SocketAddr) {
        let name = from.request(Protocol::Tcp, to, PROMPT).unwrap().name;
        let from = from.clone();
        self.regulars.push(Regular { from, to, name });
    }

    /// Waits until each load has had more answers, and none has failed.
    pub(crate) fn wait_for_more(&self, when: &str) {
        let before: Vec<_> = self.loads.iter().map(|(_, load)| load.answered()).collect();
        for ((name, load), before) in self.loads.iter().zip(before) {
            wait_for(&format!("{when}: more answers to {name}"), PATIENT, || {
                (load.answered() > before + 20 || load.failed() > 0).then_some(())
            })
            .unwrap();
            let failures = load.failures();
            assert!(failures.is_empty(), "{when}: {name}: {failures:?}");
        }
    }

    /// Asserts that all connections are open. A UDP flow that the rules of a kube-proxy began may get another
    /// pod: conntrack forgets it after 30 seconds without a packet.
    pub(crate) fn assert_open(&mut self, when: &str) {
        for kept in &mut self.kept {
            let name = kept.ask(when);
            let is_same = name == kept.name || kept.protocol == Protocol::Udp;
            assert!(is_same, "{when}: {kept:?}: {name}");
        }
    }

    /// Asserts that all connections are open, and that clients with affinity have the same pod.
    pub(crate) fn assert_kept(&mut self, when: &str) {
        for kept in &mut self.kept {
            let name = kept.ask(when);
            assert_eq!(name, kept.name, "{when}: {kept:?}");
        }
        for Regular { from, to, name } in &self.regulars {
            for _ in 0..3 {
                let answer = from.request(Protocol::Tcp, *to, PROMPT).unwrap();
                assert_eq!(answer.name, *name, "{when}: {} -> {to}", from.name());
            }
        }
    }

    /// Ends the open connections.
    pub(crate) fn close(&mut self) {
        self.kept.clear();
    }

    /// Asserts that no request of the loads failed.
    pub(crate) fn stop(self) {
        for (name, load) in self.loads {
            let report = load.stop();
            println!(
                "{name}: {} requests, {} failed, slowest {}, by {:?}",
                report.requests,
                report.failures.len(),
                report.slowest,
                report.by_name
            );
            assert!(report.failures.is_empty(), "{name}: {:?}", report.failures);
            assert!(report.requests > 100, "{name}");
        }
    }
}

/// Waits until a kube-proxy has programmed endpoints: its first synchronization may lack some.
fn wait_for_answer(from: &Host, protocol: Protocol, to: SocketAddr) {
    let what = format!("an answer by {protocol:?} from {} to {to}", from.name());
    wait_for(&what, PATIENT, || from.request(protocol, to, PROMPT).ok()).unwrap();
}
