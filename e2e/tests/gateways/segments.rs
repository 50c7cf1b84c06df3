// SPDX-License-Identifier: Apache-2.0

//! A link that is smaller than those of pods, behind which nobody learns about it.

use std::io::ErrorKind;
use std::time::Duration;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::rig::{Family, Host};

use super::large::{self, Large};
use super::world::World;

/// The time after which a transfer hangs. The first lost segment is sent again three times in it.
const HANGS: Duration = Duration::from_secs(3);
const OFF: &str = "--clamp-remote-mss=false";

/// The pod's node: it would tell the pod about the LAN that its segments are too large for.
const SILENT: usize = 3;

/// Messages of a node about the size of a packet are lost. With the clamp at the client's node both directions work,
/// without it the pod's answers hang. The client's own node tells the client, whose questions pass either way.
pub(crate) fn fit_the_path_where_icmp_is_lost(world: &mut World, dataplane: &str) {
    // These import the Service too, and would clamp for their own pods.
    for number in [2, SILENT] {
        world.restart_agent(number, &[OFF]);
    }
    silence(world.cluster.rig.node(SILENT), dataplane);
    transfers(world, Large::Answer, true);
    transfers(world, Large::Question, true);
    world.restart_agent(1, &[OFF]);
    transfers(world, Large::Answer, false);
    transfers(world, Large::Question, true);
    assert!(lost_messages(world.cluster.rig.node(SILENT), dataplane) > 0);
    world.restart_agent(1, &[]);
    transfers(world, Large::Answer, true);
    for number in [2, SILENT] {
        world.restart_agent(number, &[]);
    }
    // Of the gateways alone: it is the route back that is small.
    world.restart_agent(1, &[OFF]);
    transfers(world, Large::Answer, true);
    world.restart_agent(1, &[]);
    unsilence(world.cluster.rig.node(SILENT), dataplane);
}

/// Checks that connections of both families come to their end, or that they do not.
fn transfers(world: &World, large: Large, is_whole: bool) {
    for family in Family::ALL {
        for pod in [&world.visitor.pod, world.large_pod()] {
            let flag = match family {
                Family::V4 => "-4",
                Family::V6 => "-6",
            };
            pod.exec(&["ip", flag, "route", "flush", "cache"]).unwrap();
        }
        let vip = world.vip("here", "large", family);
        let patience = if is_whole { PATIENT } else { HANGS };
        let answer = large::ask(&world.visitor.pod, vip, large, patience);
        if is_whole {
            let answer = answer.unwrap_or_else(|error| panic!("{family:?} {large:?}: {error}"));
            assert!(large::is_whole(&answer, large), "{} bytes", answer.len());
        } else {
            let kind = answer.map(|answer| answer.len()).map_err(|e| e.kind());
            let hangs = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
            let is_hanging = kind.is_err_and(|kind| hangs.contains(&kind));
            assert!(is_hanging, "{family:?} {large:?}: {kind:?}");
        }
    }
}

/// The rules that drop messages about too large packets, of each family.
const RULES: [(&str, [&str; 4]); 2] = [
    (
        "iptables",
        ["-p", "icmp", "--icmp-type", "fragmentation-needed"],
    ),
    (
        "ip6tables",
        ["-p", "icmpv6", "--icmpv6-type", "packet-too-big"],
    ),
];
const TABLE: &str = "table inet lossy { chain out { type filter hook output priority 0; \
                     icmp type destination-unreachable icmp code frag-needed counter drop; \
                     icmpv6 type packet-too-big counter drop; }; }";

fn silence(node: &Host, dataplane: &str) {
    change(node, dataplane, "-A", TABLE);
}

fn unsilence(node: &Host, dataplane: &str) {
    change(node, dataplane, "-D", "delete table inet lossy");
}

fn change(node: &Host, dataplane: &str, deed: &str, table: &str) {
    if dataplane == "nftables" {
        node.exec(&["nft", table]).unwrap();
        return;
    }
    for (program, matches) in RULES {
        let command = [&[program, deed, "OUTPUT"], &matches[..], &["-j", "DROP"]].concat();
        node.exec(&command).unwrap();
    }
}

/// Numbers of dropped messages, added up over the families.
fn lost_messages(node: &Host, dataplane: &str) -> u64 {
    if dataplane == "nftables" {
        let rules = node
            .exec(&["nft", "list", "table", "inet", "lossy"])
            .unwrap();
        let counts = rules.split("counter packets ").skip(1);
        let counts = counts.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        return counts.sum();
    }
    let of = |program: &str| {
        let rules = node.exec(&[program, "-vnxL", "OUTPUT"]).unwrap();
        let drops = rules.lines().filter(|line| line.contains(" DROP "));
        let counts = drops.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        counts.sum::<u64>()
    };
    RULES.map(|(program, _)| of(program)).iter().sum()
}
