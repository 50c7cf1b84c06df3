// SPDX-License-Identifier: Apache-2.0

//! Continuous requests, with a separate account for each group of targets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::EchoPod;
use portolan_e2e::rig::{Host, Load, LoadConfig, Protocol};
use portolan_e2e::wait::wait_for;

use crate::world::LONG;

/// All loads.
pub(crate) struct Traffic {
    loads: Vec<Account>,
    _visitors: Vec<EchoPod>,
}

struct Account {
    name: &'static str,
    load: Load,
    /// Whether every request must succeed: all endpoints live throughout, or leave by draining, which TCP
    /// connections survive. UDP packets to an endpoint that leaves are lost.
    must_not_fail: bool,
}

/// The addresses that clients send requests to.
pub(crate) struct Targets {
    pub(crate) steady: SocketAddr,
    pub(crate) churn: SocketAddr,
    pub(crate) steady_ports: Vec<SocketAddr>,
    pub(crate) churn_ports: Vec<SocketAddr>,
}

impl Traffic {
    /// Starts the load from pods on node 0, on node 1, and again on node 1. The last pod has its
    /// own traffic: of two virtual servers with the same real servers, IPVS attributes the answers
    /// to one UDP port of one client arbitrarily.
    pub(crate) fn start(visitors: [EchoPod; 3], client: &Host, to: &Targets) -> Self {
        use Protocol::{Tcp, Udp};
        let [here, there, alone] = visitors.each_ref().map(|visitor| &visitor.pod);
        let both = [to.steady, to.churn];
        let mut ports = to.steady_ports.clone();
        ports.extend(&to.churn_ports);
        let loads = vec![
            account("cluster IPs on node 0", here, Tcp, &both, true),
            account("cluster IPs on node 1", there, Tcp, &both, true),
            account("node ports", client, Tcp, &ports, true),
            account("cluster IP on node 0, UDP", here, Udp, &both[..1], true),
            account("cluster IP on node 1, UDP", there, Udp, &both[..1], true),
            account("node ports, UDP", client, Udp, &to.steady_ports, true),
            account("what comes and goes, UDP", alone, Udp, &both[1..], false),
        ];
        Self {
            loads,
            _visitors: visitors.into(),
        }
    }

    /// Returns at `end`, if every load has had answers until then and none has failed.
    pub(crate) fn flows_until(&self, end: Instant) {
        loop {
            self.flows();
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// Returns when every load has had more answers.
    pub(crate) fn flows(&self) {
        let loads = self.loads.iter();
        let before: Vec<_> = loads.map(|account| account.load.answered()).collect();
        for (account, before) in self.loads.iter().zip(before) {
            wait_for(account.name, LONG, || {
                (account.load.answered() > before + 20).then_some(())
            })
            .unwrap();
            let failures = account.load.failures();
            let failed = account.must_not_fail && !failures.is_empty();
            assert!(!failed, "{}: {failures:?}", account.name);
        }
    }

    /// Stops all loads and checks their accounts.
    pub(crate) fn stop(&mut self) {
        let mut failed = Vec::new();
        for account in self.loads.drain(..) {
            // The rest of the test may take too little time for so many on a busy machine.
            wait_for(account.name, LONG, || {
                let load = &account.load;
                (load.answered() + load.failed() as u64 > 1_000).then_some(())
            })
            .unwrap();
            let report = account.load.stop();
            println!(
                "{}: {} requests, {} failed, slowest {}, by {:?}",
                account.name,
                report.requests,
                report.failures.len(),
                report.slowest,
                report.by_name
            );
            assert!(report.requests > 1_000, "{}", account.name);
            if account.must_not_fail {
                failed.extend(report.failures);
            }
        }
        assert!(failed.is_empty(), "{failed:?}");
    }
}

fn account(
    name: &'static str,
    from: &Host,
    protocol: Protocol,
    to: &[SocketAddr],
    must_not_fail: bool,
) -> Account {
    let config = LoadConfig {
        protocol,
        workers: 1,
        limit: 1_000_000,
        // The load, the control plane and two nodes share one processor.
        pause: Duration::from_millis(50),
        timeout: Duration::from_secs(10),
    };
    Account {
        name,
        load: Load::start(from, to, config).unwrap(),
        must_not_fail,
    }
}
