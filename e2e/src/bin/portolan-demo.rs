// SPDX-License-Identifier: Apache-2.0

//! Shows the main job on one screen: two nodes, a controller, two agents, the Services of `examples/`.
//!
//! Usage: `portolan-demo EXAMPLES-DIRECTORY [ipvs | nftables]`, as root, where the kernel has that; `make demo`
//! provides both. It prints observed results only, and fails if they differ from the Services' specifications.

#![allow(clippy::print_stdout, reason = "it shows something to people")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use portolan_e2e::cluster::{Cluster, EchoPod};
use portolan_e2e::lane::{has_ipvs, has_nftables, is_root};
use portolan_e2e::rig::{Answer, Family, Host, Protocol};

/// The deadline of an answer.
const PROMPT: Duration = Duration::from_secs(10);

/// Name, number of the node and address of each pod. The examples name the addresses of the first four.
const PODS: [(&str, usize, &str); 5] = [
    ("web-1", 0, "10.244.1.2"),
    ("shop-1", 0, "10.244.1.3"),
    ("visitor", 0, "10.244.1.4"),
    ("web-2", 1, "10.244.2.2"),
    ("shop-2", 1, "10.244.2.3"),
];

/// The cluster IP of `web.yaml`, and the node port of `shop.yaml`.
const WEB: &str = "10.96.0.10:80";
const SHOP_NODE_PORT: u16 = 30080;

fn main() -> Result<()> {
    ensure!(is_root(), "needs root: it makes network namespaces");
    let usage = "usage: portolan-demo EXAMPLES-DIRECTORY [ipvs | nftables]";
    let examples = std::env::args_os().nth(1).context(usage)?;
    let dataplane = match std::env::args().nth(2).as_deref() {
        None | Some("ipvs") => "ipvs",
        Some("nftables") => "nftables",
        Some(_) => bail!(usage),
    };
    let is_there = match dataplane {
        "nftables" => has_nftables(),
        _ => has_ipvs(),
    };
    ensure!(is_there, "this kernel has no {dataplane}: run `make demo`");
    Demo::new(PathBuf::from(examples), dataplane)?.run()
}

struct Demo {
    pods: Vec<EchoPod>,
    cluster: Cluster,
    examples: PathBuf,
    dataplane: &'static str,
}

impl Demo {
    fn new(examples: PathBuf, dataplane: &'static str) -> Result<Self> {
        let cluster = Cluster::on(dataplane).context("start the controller and two agents")?;
        let mut pods = Vec::new();
        for (name, node, address) in PODS {
            let added = cluster.add_pod(node, name)?;
            let got = added.pod.v4().to_string();
            ensure!(got == address, "{name} got {got}, examples have {address}");
            pods.push(added);
        }
        Ok(Self {
            pods,
            cluster,
            examples,
            dataplane,
        })
    }

    fn run(&self) -> Result<()> {
        self.show_machines();
        let web = read(&self.examples, "web.yaml")?;
        self.cluster.put_text("web.yaml", &web)?;
        self.cluster
            .put_text("shop.yaml", &read(&self.examples, "shop.yaml")?)?;
        println!(
            "\nexamples/web.yaml, examples/shop.yaml: both nodes have programmed revision {}",
            self.cluster.revision()?
        );
        let (visitor, client) = (self.pod("visitor")?, self.cluster.rig.client());
        let web_address = WEB.parse()?;
        let seen = self.ask(visitor, web_address, "Service web", 6)?;
        expect(
            &seen,
            &[
                ("web-1", visitor.v4().into()),
                ("web-2", visitor.v4().into()),
            ],
        )?;

        let node = self.cluster.rig.node(0);
        let node_port = node.socket(Family::V4, SHOP_NODE_PORT);
        let seen = self.ask(client, node_port, "node port of Service shop", 4)?;
        // Masqueraded by the node: as its gateway towards its own pods.
        let gateway = node.gateway().0;
        expect(
            &seen,
            &[("shop-1", gateway.into()), ("shop-2", node.v4().into())],
        )?;

        let fewer = without_node(&web, "node1")?;
        self.cluster.put_text("web.yaml", &fewer)?;
        println!(
            "\nweb.yaml without its endpoints on node1: both nodes have programmed revision {}",
            self.cluster.revision()?
        );
        let seen = self.ask(visitor, web_address, "Service web", 6)?;
        expect(&seen, &[("web-2", visitor.v4().into())])?;
        self.show_tables()
    }

    fn pod(&self, name: &str) -> Result<&Host> {
        let mut pods = self.pods.iter().map(|pod| &pod.pod);
        pods.find(|pod| pod.name() == name)
            .with_context(|| format!("no pod {name}"))
    }

    fn show_machines(&self) {
        for (number, node) in self.cluster.rig.nodes().iter().enumerate() {
            let here = PODS.iter().filter(|(_, on, _)| *on == number);
            let pods: Vec<_> = here.map(|(name, _, ip)| format!("{name} {ip}")).collect();
            println!(
                "{} {}: portolan-agent; pods {}",
                Cluster::node_name(number),
                node.v4(),
                pods.join(", ")
            );
        }
        println!(
            "outside: client {}; portolan-controller on {}",
            self.cluster.rig.client().v4(),
            self.cluster.control().v4()
        );
    }

    /// Makes requests, each over a new connection, and shows the answering pods.
    fn ask(&self, from: &Host, to: SocketAddr, what: &str, count: usize) -> Result<Vec<Answer>> {
        println!(
            "{count} requests from {} to {to} ({what})",
            self.name_of(from.v4().into())
        );
        let ask = || {
            from.request(Protocol::Tcp, to, PROMPT)
                .map_err(|error| anyhow::anyhow!("{} -> {to}: {error}", from.name()))
        };
        let answers = (0..count).map(|_| ask()).collect::<Result<Vec<_>>>()?;
        let names: Vec<&str> = answers.iter().map(|answer| &*answer.name).collect();
        println!("  answered by: {}", names.join(" "));
        let sources: BTreeMap<_, _> = answers.iter().map(|a| (&a.name, a.source)).collect();
        let sources: Vec<_> = sources
            .into_iter()
            .map(|(name, source)| format!("by {name} {}", self.name_of(source)))
            .collect();
        println!("  source seen: {}", sources.join(", "));
        Ok(answers)
    }

    /// The name of an address's owner.
    fn name_of(&self, address: IpAddr) -> String {
        let mut known = BTreeMap::new();
        for pod in &self.pods {
            known.insert(pod.pod.v4(), format!("pod {}", pod.pod.name()));
        }
        for (number, node) in self.cluster.rig.nodes().iter().enumerate() {
            let name = Cluster::node_name(number);
            known.insert(node.gateway().0, format!("{name} as its pods' gateway"));
            known.insert(node.v4(), name);
        }
        known.insert(self.cluster.rig.client().v4(), "outside client".into());
        let owner = known
            .iter()
            .find(|(known, _)| IpAddr::V4(**known) == address);
        match owner {
            Some((_, name)) => format!("{address} ({name})"),
            None => address.to_string(),
        }
    }

    /// The nodes' tables, side by side.
    fn show_tables(&self) -> Result<()> {
        let mut columns = Vec::new();
        for (number, node) in self.cluster.rig.nodes().iter().enumerate() {
            let (command, rows) = match self.dataplane {
                "nftables" => slots(node)?,
                _ => virtual_servers(node)?,
            };
            let mut column = vec![format!("{}: {command}", Cluster::node_name(number))];
            column.extend(rows);
            columns.push(column);
        }
        println!(
            "\n{}",
            match self.dataplane {
                "nftables" => "address . protocol . port . slot : endpoint",
                _ =>
                    "-> address, forwarding, weight (0: only for the connections it has), active, inactive",
            }
        );
        let height = columns.iter().map(Vec::len).max().unwrap_or_default();
        for row in 0..height {
            let cells = columns.iter().map(|column| column.get(row));
            let line: String = cells
                .map(|cell| format!("{:<54}", cell.map_or("", String::as_str)))
                .collect();
            println!("{}", line.trim_end());
        }
        Ok(())
    }
}

/// The virtual servers of a node, and the command that lists them.
fn virtual_servers(node: &Host) -> Result<(&'static str, Vec<String>)> {
    let table = node.exec(&["ipvsadm", "-Ln"])?;
    ensure!(table.lines().count() > 3, "empty table:\n{table}");
    // The first three lines are the version and the heading.
    let rows = table.lines().skip(3).map(squeeze);
    Ok(("ipvsadm -Ln", rows.collect()))
}

/// The slots of a node's nftables, and the command that lists them.
fn slots(node: &Host) -> Result<(&'static str, Vec<String>)> {
    let command = "nft list map ip portolan endpoints";
    let words: Vec<_> = command.split(' ').collect();
    let listed = node.exec(&words)?;
    let elements = listed.split_once("elements = {").map(|(_, rest)| rest);
    let elements = elements.with_context(|| format!("empty map:\n{listed}"))?;
    let elements = elements.split('}').next().unwrap_or_default().split(',');
    let mut rows: Vec<_> = elements.map(|element| short_slot(element.trim())).collect();
    rows.sort();
    Ok((command, rows))
}

/// An element with the number of its slot in decimal.
fn short_slot(element: &str) -> String {
    let words = element.split(' ').map(|word| {
        let number = word.strip_prefix("0x");
        let number = number.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        number.map_or_else(|| word.to_owned(), |number| number.to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A line of `ipvsadm` with narrower columns.
fn squeeze(line: &str) -> String {
    let mut words = line.split_whitespace();
    if !line.trim_start().starts_with("->") {
        return words.collect::<Vec<_>>().join(" ");
    }
    let destination = words.by_ref().nth(1).unwrap_or_default();
    let rest: Vec<_> = words.collect();
    format!("  -> {destination:<21} {}", rest.join(" "))
}

fn read(directory: &Path, name: &str) -> Result<String> {
    let path = directory.join(name);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// An example without its endpoints on a node. Each endpoint takes a line of addresses and one of
/// the node.
fn without_node(example: &str, node: &str) -> Result<String> {
    let mut lines: Vec<&str> = Vec::new();
    for line in example.lines() {
        if line.trim() == format!("nodeName: {node}") {
            let addresses = lines.pop().unwrap_or_default();
            ensure!(
                addresses.trim().starts_with("- addresses:"),
                "{addresses:?} comes before {line:?}"
            );
        } else {
            lines.push(line);
        }
    }
    Ok(lines.join("\n") + "\n")
}

/// Fails unless exactly these pods answered, and saw these sources.
fn expect(seen: &[Answer], expected: &[(&str, IpAddr)]) -> Result<()> {
    let seen: BTreeSet<_> = seen.iter().map(|a| (&*a.name, a.source)).collect();
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    ensure!(seen == expected, "saw {seen:?}, expected {expected:?}");
    Ok(())
}
