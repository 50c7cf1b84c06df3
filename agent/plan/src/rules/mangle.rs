// SPDX-License-Identifier: Apache-2.0

//! Rules of `mangle`: traffic policies, and marks of load balancers with ranges of ports. IPVS selects the virtual server later, by the packet's mark if it
//! has one. So one frontend has two lists of destinations: short-circuited packets get the mark of the
//! cluster-wide list.
//!
//! Only the first packets of a connection (`NEW`) are matched; later ones follow the connection, also to
//! destinations that no list has any more. No rule ends in ACCEPT: other programs have rules in these
//! hooks too.

use super::{Chain, Writer, source_ranges};
use crate::{DetectLocal, SetName};

/// The chain about imports.
pub(super) const REMOTE_MSS: &str = "REMOTE-MSS";

/// Its target: the largest segment that fits the routes to both ends of the packet, if it is smaller.
pub(super) const CLAMP: &str = "-j TCPMSS --clamp-mss-to-pmtu";

pub(super) const CHAINS: [Chain; 7] = [
    ("LOCAL-POLICY", local_policy),
    ("LOCAL-POLICY-OUT", local_policy_out),
    ("SHORT-CIRCUIT", short_circuit),
    ("SHORT-CIRCUIT-OUT", short_circuit_out),
    ("SHORT-CIRCUIT-END", short_circuit_end),
    (REMOTE_MSS, remote_mss),
    ("SOURCE-RANGES-FIREWALL", source_ranges),
];

const NOT_NEW: &str = "-m conntrack ! --ctstate NEW -j RETURN";

/// Incoming packets. Connections of the node's own pods are not masqueraded.
///
/// A network of the whole cluster also matches pods of other nodes, which ask for an address of this node by the interface
/// that has it. They have the endpoints of this node alone: any other one would answer them directly, and the connection
/// would hang. Without an endpoint IPVS refuses them.
fn local_policy(writer: &mut Writer<'_>) -> Vec<String> {
    let mut rules = vec![NOT_NEW.to_owned(), map_mark(writer, SetName::BalancedMark)];
    if let Some(local) = writer.local.clone() {
        let set = writer.set(SetName::ShortCircuit);
        let chain = writer.chain("SHORT-CIRCUIT");
        let pods = format!("{local} -m set --match-set {set} dst,dst");
        if matches!(writer.config.detect_local, DetectLocal::ClusterCidr(_)) {
            let own = "-m addrtype --dst-type LOCAL --limit-iface-in";
            rules.push(format!("{pods} {own} -j RETURN"));
        }
        rules.push(format!("{pods} -g {chain}"));
    }
    rules.push(writer.on_set(SetName::NoLocal, "dst,dst", "", "DROP"));
    rules
}

/// Packets of the node itself; source ranges apply to them too.
fn local_policy_out(writer: &mut Writer<'_>) -> Vec<String> {
    let ranges = writer.chain("SOURCE-RANGES-FIREWALL");
    let (set, chain) = (
        writer.set(SetName::ShortCircuit),
        writer.chain("SHORT-CIRCUIT-OUT"),
    );
    vec![
        NOT_NEW.to_owned(),
        // Health checks by way of a service: their mark leads to one backend, whoever may be a client.
        format!("{} -j RETURN", writer.has_own_mark()),
        map_mark(writer, SetName::BalancedMark),
        writer.on_set(SetName::LoadBalancerFw, "dst,dst", "", &ranges),
        format!("-m set --match-set {set} dst,dst -g {chain}"),
        writer.on_set(SetName::NoLocal, "dst,dst", "", "DROP"),
    ]
}

fn short_circuit(writer: &mut Writer<'_>) -> Vec<String> {
    vec![map_mark(writer, SetName::ShortCircuit)]
}

/// Gives a packet the mark that the set has for its destination, if any.
fn map_mark(writer: &mut Writer<'_>, set: SetName) -> String {
    let set = writer.set(set);
    format!("-j SET --map-set {set} dst,dst --map-mark")
}

/// The node's own connections are masqueraded, as upstream does. The packet's mark cannot carry that bit, since
/// IPVS compares the whole mark.
fn short_circuit_out(writer: &mut Writer<'_>) -> Vec<String> {
    let masquerade = writer.config.masquerade_mark;
    vec![
        format!("-j CONNMARK --set-xmark {masquerade:#x}/{masquerade:#x}"),
        map_mark(writer, SetName::ShortCircuit),
    ]
}

/// Clears the mark after IPVS has selected the virtual server: in a tunnel the outer packet would keep
/// it, and IPVS would treat that packet as a new connection. Marks with other bits are foreign.
fn short_circuit_end(writer: &mut Writer<'_>) -> Vec<String> {
    let ours = writer.config.short_circuit_mask.bits();
    let others = !ours;
    vec![format!(
        "-m conntrack --ctstate NEW -m mark --mark 0x0/{others:#x} -m mark ! --mark 0x0/{ours:#x} \
         -j MARK --set-xmark 0x0/{ours:#x}"
    )]
}

/// Tells a real server of an import how large its segments may be on the way back: a link between clusters may be smaller
/// than that of the client, and the ICMP messages about it may be lost. IPVS has translated the destination before
/// this hook, of forwarded packets and of the node's own.
fn remote_mss(writer: &mut Writer<'_>) -> Vec<String> {
    if !writer.config.clamp_remote_mss {
        return Vec::new();
    }
    let set = writer.set(SetName::Remote);
    vec![format!(
        "-p tcp --tcp-flags SYN,RST SYN -m set --match-set {set} dst,dst {CLAMP}"
    )]
}
