// SPDX-License-Identifier: Apache-2.0

//! Programs 10,000 services of 10 endpoints into the real kernel, by the product and by other
//! programs, and compares the times. Each program runs in its own process and network namespace,
//! since the kernel remembers deleted real servers for minutes. Measurements of about a second are
//! repeated, alternating with those that they are compared with, and the median counts.
//!
//! `make bench-agent` runs it in a guest. `PORTOLAN_MOBY_IPVS` names the program that uses the Go
//! library, and `PORTOLAN_KUBE_PROXY` names kube-proxy. Without one, its comparison is omitted.
#![allow(
    clippy::cast_precision_loss,
    clippy::print_stdout,
    missing_docs,
    reason = "a benchmark"
)]

mod encode;
mod kube_proxy;
mod load;
mod nft;
mod others;
mod product;
mod summary;
mod wire;

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::lane::{Need, provides};

use load::Load;

/// The node's address in each namespace.
const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

const LARGE: Load = Load {
    services: 10_000,
    endpoints: 10,
};
const SMALL: Load = Load {
    services: 100,
    endpoints: 10,
};

/// The measurements, each run in a child process. Those that begin with `nft` and `kube-proxy-nft` need a kernel with
/// nftables, the others one with IPVS.
const WAYS: [&str; 14] = [
    "floor",
    "cold",
    "one",
    "moby",
    "ipvsadm",
    "product",
    "small",
    "phases",
    "kube-proxy",
    "nft-floor",
    "nft-cold",
    "nft",
    "nft-small",
    "kube-proxy-nft",
];

/// Returns `true` if a measurement is one of nftables.
fn is_of_nftables(way: &str) -> bool {
    way.contains("nft")
}

fn main() -> Result<()> {
    let way = std::env::args().nth(1);
    match way.filter(|way| WAYS.contains(&way.as_str())) {
        Some(way) => measure(&way),
        None => {
            let ways = [(Need::Ipvs, false), (Need::Nftables, true)];
            let ways = ways.map(|(need, of_nftables)| {
                let name = if of_nftables {
                    "bench-agent (nftables)"
                } else {
                    "bench-agent"
                };
                let can_run = provides(name, &[Need::Root, need]);
                (of_nftables, can_run)
            });
            let can_run = |way: &str| ways.contains(&(is_of_nftables(way), true));
            summary::run(can_run)
        }
    }
}

/// Runs a measurement in a new network namespace, and returns the lines that it printed.
fn run_way(way: &str) -> Result<String> {
    let program = std::env::current_exe()?;
    let mut command = Command::new("unshare");
    command.arg("-n").arg(program).arg(way);
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "{way}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Sets up a node's network and runs the measurement. Called in the child.
fn measure(way: &str) -> Result<()> {
    // A kernel without IPVS may have no dummy device either.
    let kind = if is_of_nftables(way) {
        "bridge"
    } else {
        "dummy"
    };
    for command in [
        "ip link set lo up".to_owned(),
        format!("ip link add node0 type {kind}"),
        format!("ip address add {NODE}/24 dev node0"),
        "ip link set node0 up".to_owned(),
    ] {
        shell(&command)?;
    }
    match way {
        "floor" => others::floor(LARGE),
        "cold" => product::cold(LARGE),
        "one" => others::one_by_one(LARGE),
        "moby" => others::moby(LARGE),
        "ipvsadm" => others::ipvsadm(LARGE),
        "small" => product::run(SMALL),
        "phases" => product::phases(LARGE),
        "kube-proxy" => kube_proxy::run(LARGE),
        "nft-floor" => nft::floor(LARGE),
        "nft-cold" => nft::cold(LARGE),
        "nft" => nft::run(LARGE),
        "nft-small" => nft::run(SMALL),
        "kube-proxy-nft" => nft::kube_proxy(LARGE),
        _ => product::run(LARGE),
    }
}

fn shell(command: &str) -> Result<()> {
    let mut words = command.split(' ');
    let program = words.next().context("no command")?;
    let status = Command::new(program).args(words).status()?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}

/// Reports a value to the parent.
fn say(name: &str, value: f64) {
    println!("value {name} {value}");
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
