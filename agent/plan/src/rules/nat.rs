// SPDX-License-Identifier: Apache-2.0

//! Rules of `nat`: masquerade. Only the first packet of a connection traverses them.

use portolan_model::Family;

use super::{Chain, Writer};
use crate::SetName;

pub(super) const CHAINS: [Chain; 5] = [
    ("SERVICES", services),
    ("LOAD-BALANCER", load_balancer),
    ("NODE-PORT", node_port),
    ("MARK-MASQ", mark_masq),
    ("POSTROUTING", postrouting),
];

fn services(writer: &mut Writer<'_>) -> Vec<String> {
    let mark_masq = writer.chain("MARK-MASQ");
    let load_balancer = writer.chain("LOAD-BALANCER");
    let node_port = writer.chain("NODE-PORT");
    let loopback = match writer.family {
        Family::V4 => "127.0.0.0/8",
        Family::V6 => "::1/128",
    };
    vec![
        format!("-s {loopback} -j RETURN"),
        writer.on_set(SetName::LoadBalancer, "dst,dst", "", &load_balancer),
        cluster_ip_masquerade(writer, &mark_masq),
        writer.on_set(SetName::ExternalIp, "dst,dst", "", &mark_masq),
        format!("-m addrtype --dst-type LOCAL -j {node_port}"),
        // Later rules, such as those of a hostPort, must not translate these packets.
        writer.on_set(SetName::ExternalIp, "dst,dst", "", "ACCEPT"),
        writer.on_set(SetName::ExternalIpLocal, "dst,dst", "", "ACCEPT"),
        writer.on_set(SetName::ClusterIp, "dst,dst", "", "ACCEPT"),
        writer.on_set(SetName::LoadBalancer, "dst,dst", "", "ACCEPT"),
    ]
}

fn cluster_ip_masquerade(writer: &mut Writer<'_>, mark_masq: &str) -> String {
    let local = writer.local.clone();
    match local {
        _ if writer.config.masquerade_all => {
            writer.on_set(SetName::ClusterIp, "dst,dst", "", mark_masq)
        }
        Some(local) => {
            let rule = writer.on_set(SetName::ClusterIp, "dst,dst", "", mark_masq);
            format!("! {local} {rule}")
        }
        // The node's own connections: on a host with several networks their source need not be an
        // address of the network that they leave by.
        None => {
            let rule = writer.on_set(SetName::ClusterIp, "dst,dst", "", mark_masq);
            format!("-m addrtype --src-type LOCAL {rule}")
        }
    }
}

fn load_balancer(writer: &mut Writer<'_>) -> Vec<String> {
    vec![
        writer.on_set(SetName::LoadBalancerLocal, "dst,dst", "", "RETURN"),
        format!("-j {}", writer.chain("MARK-MASQ")),
    ]
}

fn node_port(writer: &mut Writer<'_>) -> Vec<String> {
    let mark_masq = writer.chain("MARK-MASQ");
    let protocols = [
        (
            "tcp",
            SetName::NodePortLocalTcp,
            SetName::NodePortTcp,
            "dst",
        ),
        (
            "udp",
            SetName::NodePortLocalUdp,
            SetName::NodePortUdp,
            "dst",
        ),
        (
            "sctp",
            SetName::NodePortLocalSctp,
            SetName::NodePortSctp,
            "dst,dst",
        ),
    ];
    let mut rules = Vec::new();
    for (protocol, local, all, dirs) in protocols {
        rules.push(format!(
            "-p {protocol} {}",
            writer.on_set(local, dirs, "", "RETURN")
        ));
        rules.push(format!(
            "-p {protocol} {}",
            writer.on_set(all, dirs, "", &mark_masq)
        ));
    }
    rules
}

fn mark_masq(writer: &mut Writer<'_>) -> Vec<String> {
    vec![
        // IPVS compares the whole mark. A health check has an address of this host already; packets of pods may have
        // marks of other programs.
        format!(
            "-m addrtype --src-type LOCAL {} -j RETURN",
            writer.has_own_mark()
        ),
        format!("-j MARK --or-mark {:#x}", writer.config.masquerade_mark),
    ]
}

fn postrouting(writer: &mut Writer<'_>) -> Vec<String> {
    let mark = writer.config.masquerade_mark;
    let connection = format!("-m connmark --mark {mark:#x}/{mark:#x}");
    let masquerade = "-j MASQUERADE --random-fully";
    vec![
        writer.on_set(SetName::LoopBack, "dst,dst,src", "", "MASQUERADE"),
        // Short-circuited connections of the node itself, whose packet mark selects the virtual server.
        format!("{connection} -m addrtype --src-type LOCAL {masquerade}"),
        format!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"),
        // Without the mark, a packet that passes again (through a tunnel) is not masqueraded twice.
        format!("-j MARK --xor-mark {mark:#x}"),
        masquerade.to_owned(),
    ]
}
