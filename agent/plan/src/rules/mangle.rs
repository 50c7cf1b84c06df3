//! `mangle`: traffic policies. IPVS chooses the virtual server later, by a packet's mark if it has
//! one, so that one way in leads to two lists of destinations: who is short-circuited gets the mark
//! of the cluster-wide one.
//!
//! Only the first packets of a connection (`NEW`) are looked at: the others follow the connection,
//! also to destinations that are not in any list any more. Nothing ends in ACCEPT here, others have
//! rules in these hooks too.

use super::{Chain, Writer, source_ranges};
use crate::{DetectLocal, SetName};

pub(super) const CHAINS: [Chain; 6] = [
    ("LOCAL-POLICY", local_policy),
    ("LOCAL-POLICY-OUT", local_policy_out),
    ("SHORT-CIRCUIT", short_circuit),
    ("SHORT-CIRCUIT-OUT", short_circuit_out),
    ("SHORT-CIRCUIT-END", short_circuit_end),
    ("SOURCE-RANGES-FIREWALL", source_ranges),
];

const NOT_NEW: &str = "-m conntrack ! --ctstate NEW -j RETURN";

/// What comes in. Connections of the node's own pods leave as they come, un-masqueraded.
fn local_policy(writer: &mut Writer<'_>) -> Vec<String> {
    let mut rules = vec![NOT_NEW.to_owned()];
    if let Some(local) = writer.local.clone() {
        let set = writer.set(SetName::ShortCircuit);
        let chain = writer.chain("SHORT-CIRCUIT");
        rules.push(format!(
            "{local} -m set --match-set {set} dst,dst -g {chain}"
        ));
    }
    rules.push(writer.on_set(SetName::NoLocal, "dst,dst", "", "DROP"));
    rules
}

/// What the node itself sends; source ranges hold for it too.
fn local_policy_out(writer: &mut Writer<'_>) -> Vec<String> {
    let ranges = writer.chain("SOURCE-RANGES-FIREWALL");
    let (set, chain) = (
        writer.set(SetName::ShortCircuit),
        writer.chain("SHORT-CIRCUIT-OUT"),
    );
    vec![
        NOT_NEW.to_owned(),
        writer.on_set(SetName::LoadBalancerFw, "dst,dst", "", &ranges),
        format!("-m set --match-set {set} dst,dst -g {chain}"),
        writer.on_set(SetName::NoLocal, "dst,dst", "", "DROP"),
    ]
}

fn short_circuit(writer: &mut Writer<'_>) -> Vec<String> {
    let mut rules = Vec::new();
    if matches!(writer.config.detect_local, DetectLocal::ClusterCidr(_)) {
        // A pod of another node asks for an address of this one. The reply of an endpoint elsewhere
        // would go straight to that pod. Connections of the node's own pods come in by an interface
        // without the address that they ask for.
        let connection = mark_connection(writer);
        let own = "-m addrtype --dst-type LOCAL --limit-iface-in";
        rules.push(format!("{own} {connection}"));
    }
    rules.push(map_mark(writer));
    rules
}

fn map_mark(writer: &mut Writer<'_>) -> String {
    let set = writer.set(SetName::ShortCircuit);
    format!("-j SET --map-set {set} dst,dst --map-mark")
}

/// The connection is to be masqueraded. The packet's mark has no room to say so, since IPVS compares
/// all of it.
fn mark_connection(writer: &Writer<'_>) -> String {
    let masquerade = writer.config.masquerade_mark;
    format!("-j CONNMARK --set-xmark {masquerade:#x}/{masquerade:#x}")
}

/// The node's own connections are masqueraded, as upstream does.
fn short_circuit_out(writer: &mut Writer<'_>) -> Vec<String> {
    vec![mark_connection(writer), map_mark(writer)]
}

/// Takes the mark away when IPVS has chosen: in a tunnel it would stay with the outer packet, which
/// IPVS would take for a new connection. Marks that have other bits too are somebody else's.
fn short_circuit_end(writer: &mut Writer<'_>) -> Vec<String> {
    let ours = writer.config.short_circuit_mask.bits();
    let others = !ours;
    vec![format!(
        "-m conntrack --ctstate NEW -m mark --mark 0x0/{others:#x} -m mark ! --mark 0x0/{ours:#x} \
         -j MARK --set-xmark 0x0/{ours:#x}"
    )]
}
