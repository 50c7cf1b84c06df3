// SPDX-License-Identifier: Apache-2.0

//! The migration guide, word for word: from a kube-proxy that runs as a DaemonSet, in each of its modes, to Portolan
//! installed by its chart, node by node, and back. No request fails and no connection breaks.

#![allow(clippy::unwrap_used, reason = "a test")]

mod guide;
mod world;

use std::io::Write as _;

use portolan_e2e::clients::Clients;
use portolan_e2e::figure::figure;
use portolan_e2e::kubelets::LIMIT;
use portolan_e2e::wait::wait_with_pauses;
use serde_json::{Value, json};

use self::guide::Guide;
use self::world::{AGENT, CLEANUP, CONTROLLER, KUBE_PROXY, LOOK, World};

const PENDING_TAKEOVER: &str = "portolan_agent_takeover_pending";
const PENDING_CHANGEOVER: &str = "portolan_agent_changeover_pending";
const OF_AGENT: &str = "app.kubernetes.io/component=agent";
/// The ends of a check.
const FIT: [&str; 2] = ["this node is prepared", "fit and not prepared"];
const OF_KUBE_PROXY: &str = "k8s-app=kube-proxy";

/// An operator with the guide, a cluster and its users.
struct Migration {
    guide: Guide,
    world: World,
    clients: Clients,
    /// True if clients with affinity keep their pod: from IPVS mode to IPVS alone.
    keeps_affinity: bool,
}

impl Migration {
    fn start_or_skip(test: &str, mode: &str, more: Value) -> Option<Self> {
        let world = World::start_or_skip(test, mode, more)?;
        let clients = world.start_clients();
        clients.wait_for_more("under kube-proxy");
        Some(Self {
            guide: Guide::read(),
            world,
            clients,
            keeps_affinity: mode == "ipvs",
        })
    }

    fn play(&self, title: &str, node: usize) -> String {
        let said = self.world.run(&self.guide.commands(title), node);
        said.unwrap_or_else(|error| panic!("{title}: {error}"))
    }

    /// Asserts that clients are served as before.
    fn check_clients(&mut self, when: &str) {
        // Straight to the stream: a test of minutes is looked at while it runs.
        let _ = writeln!(std::io::stdout(), "{when}");
        self.clients.wait_for_more(when);
        match self.keeps_affinity {
            true => self.clients.assert_kept(when),
            false => self.clients.assert_open(when),
        }
    }

    /// Steps 0 to 3: nodes are checked, Portolan is installed, and kube-proxy can be kept off.
    fn prepare(&mut self) {
        self.play("Step 0", 0);
        self.play("Step 1", 0);
        self.wait_for_fit_nodes();
        self.check_clients("nodes are checked");

        self.play("Step 2", 0);
        self.world.rolled_out(CONTROLLER);
        for node in [0, 1] {
            self.world.wait_for_pods(OF_AGENT, node, 0);
        }
        self.check_clients("installed");

        self.play("Step 3", 0);
        self.world.rolled_out(KUBE_PROXY);
        self.check_clients("kube-proxy was restarted");
    }

    /// Waits until the logs of step 1 say that both nodes are fit.
    fn wait_for_fit_nodes(&self) {
        let check = self.guide.commands("Check of step 1");
        let are_fit = || {
            // A container that does not run yet has no log.
            let said = self.world.run(&check, 0).ok()?;
            assert!(!said.contains("unfit"), "{said}");
            let is_fit = |line: &&str| FIT.iter().any(|fit| line.contains(fit));
            (said.lines().filter(is_fit).count() >= 2).then_some(())
        };
        wait_with_pauses("logs of two nodes", LIMIT, LOOK, are_fit).unwrap();
    }

    /// Step 4: one node forward.
    fn take_over(&mut self, node: usize) {
        self.play("Step 4", node);
        self.world.wait_for_pods(OF_KUBE_PROXY, node, 0);
        self.world.wait_for_pods(OF_AGENT, node, 1);
        self.world.rolled_out(AGENT);
        self.world.wait_for_zero(PENDING_TAKEOVER, node);
        self.world
            .wait_for_zero("portolan_agent_errors_current", node);
        let said = self.play("Check of step 4", node);
        assert!(said.contains(&format!("node{}", node + 1)), "{said}");
        self.check_clients("taken over");
    }

    /// One node back.
    fn give_back(&mut self, node: usize) {
        self.play("One node back", node);
        self.world.wait_for_pods(OF_AGENT, node, 0);
        self.world.wait_for_pods(OF_KUBE_PROXY, node, 1);
        self.world.wait_for_kube_proxy(node);
        self.play("Check of one node back", node);
        self.world.rolled_out(CLEANUP);
        self.world.assert_nothing_of_ours(node);
        self.check_clients("given back");
    }

    /// All of it. Nodes go forward, back, and forward again.
    fn run(mut self, name: &str) {
        self.prepare();
        for node in [0, 1] {
            self.take_over(node);
        }
        for node in [0, 1] {
            self.give_back(node);
        }
        for node in [0, 1] {
            self.take_over(node);
        }
        self.play("Step 6", 0);
        self.world.rolled_out(CONTROLLER);
        self.world.rolled_out(AGENT);
        self.play("Check of step 6", 0);
        self.end(name);
    }

    fn end(mut self, name: &str) {
        self.check_clients("at the end");
        let requests: u64 = self.clients.stop().iter().map(|(_, it)| it.requests).sum();
        let name = format!("migration_{name}_requests");
        figure(&name, requests as f64, "requests", None);
    }
}

#[test]
fn from_ipvs_mode_and_back() {
    if let Some(migration) = Migration::start_or_skip("from_ipvs_mode_and_back", "ipvs", json!({}))
    {
        migration.run("ipvs");
    }
}

#[test]
fn from_nftables_mode_and_back() {
    let test = "from_nftables_mode_and_back";
    if let Some(migration) = Migration::start_or_skip(test, "nftables", json!({})) {
        migration.run("nftables");
    }
}

/// The agents serve by IPVS, so that the way back leads through nftables, and open connections end before it.
#[test]
fn from_iptables_mode_and_back() {
    // IPVS remembers the clients' last packets for minutes by default.
    let soon = json!({ "agent": { "kernel": { "timeouts": { "tcpFin": "5s", "udp": "5s" } } } });
    let test = "from_iptables_mode_and_back";
    let Some(mut migration) = Migration::start_or_skip(test, "iptables", soon) else {
        return;
    };
    migration.prepare();
    for node in [0, 1] {
        migration.take_over(node);
    }
    migration.play("Before one node back", 0);
    migration.play("Check before one node back", 0);
    migration.check_clients("changing over");
    migration.clients.close();
    for node in [0, 1] {
        migration.world.wait_for_zero(PENDING_CHANGEOVER, node);
    }
    migration.clients.open();
    migration.check_clients("changed over");
    for node in [0, 1] {
        migration.give_back(node);
    }
    migration.play("All nodes back", 0);
    migration.world.rolled_out(KUBE_PROXY);
    migration.end("iptables");
}
