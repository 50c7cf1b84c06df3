// SPDX-License-Identifier: Apache-2.0

//! Health as columns.

use super::merge::{Backend, Balancer, OnNode, State};
use crate::columns::columns;

/// Text when no node has reported anything.
const NOTHING: &str = "no director has reported the health of backends\n";

/// A line for each backend, and before those of a load balancer one for its quorum.
pub(super) fn by_backend(balancers: &[Balancer]) -> String {
    let mut rows = vec![titles(&[
        "LOAD BALANCER",
        "BACKEND",
        "UP",
        "DIRECTORS",
        "DOWN ON",
        "REASON",
    ])];
    for balancer in balancers {
        let name = name(balancer);
        rows.push(quorum_row(&name, &balancer.nodes));
        let backends = balancer.backends.iter();
        rows.extend(backends.map(|backend| backend_row(&name, backend)));
    }
    table(&rows)
}

/// A line for each backend on each node.
pub(super) fn by_node(balancers: &[Balancer]) -> String {
    let mut rows = vec![titles(&[
        "LOAD BALANCER",
        "BACKEND",
        "NODE",
        "CONNECTED",
        "STATE",
        "ADMINISTRATIVE",
        "WEIGHT",
        "SINCE",
        "REASON",
    ])];
    for balancer in balancers {
        let name = name(balancer);
        rows.extend(balancer.nodes.iter().map(|node| quorum_on(&name, node)));
        for backend in &balancer.backends {
            let states = backend.nodes.iter();
            rows.extend(states.map(|state| state_row(&name, backend, state)));
        }
    }
    table(&rows)
}

fn table(rows: &[Vec<String>]) -> String {
    match rows.len() {
        0 | 1 => NOTHING.to_owned(),
        _ => columns(rows),
    }
}

fn titles(titles: &[&str]) -> Vec<String> {
    titles.iter().map(|title| (*title).to_owned()).collect()
}

/// `NAMESPACE/NAME[:FRONTEND]/PROTOCOL`.
fn name(balancer: &Balancer) -> String {
    let colon = if balancer.frontend.is_empty() {
        ""
    } else {
        ":"
    };
    format!(
        "{}{colon}{}/{}",
        balancer.load_balancer, balancer.frontend, balancer.protocol
    )
}

fn quorum_row(name: &str, nodes: &[OnNode]) -> Vec<String> {
    let known = || nodes.iter().filter_map(OnNode::has_quorum);
    let lack = nodes.iter().filter(|node| node.has_quorum() == Some(false));
    let sorry = nodes.iter().any(|node| node.connected && node.sorry);
    let reason = if sorry { "the sorry server serves" } else { "" };
    row(
        name,
        "(quorum)",
        known().collect(),
        lack.map(|n| &*n.node),
        reason,
    )
}

fn backend_row(name: &str, backend: &Backend) -> Vec<String> {
    let known = backend.nodes.iter().filter_map(State::is_up).collect();
    let down = || backend.nodes.iter().filter(|s| s.is_up() == Some(false));
    let reason = down().map(|state| &*state.reason).find(|r| !r.is_empty());
    let out = backend.nodes.iter().find(|s| s.administrative != "enabled");
    let reason = reason.or_else(|| out.map(|state| &*state.administrative));
    row(
        name,
        &backend.address.to_string(),
        known,
        down().map(|state| &*state.node),
        reason.unwrap_or_default(),
    )
}

/// `known` says of each node that knows it whether the subject is up there.
fn row<'a>(
    name: &str,
    subject: &str,
    known: Vec<bool>,
    down: impl Iterator<Item = &'a str>,
    reason: &str,
) -> Vec<String> {
    let up = known.iter().filter(|is_up| **is_up).count();
    let agree = match up {
        _ if known.is_empty() => "unknown",
        0 => "agree",
        up if up == known.len() => "agree",
        _ => "disagree",
    };
    let down = down.collect::<Vec<_>>().join(",");
    vec![
        name.to_owned(),
        subject.to_owned(),
        format!("{up}/{}", known.len()),
        agree.to_owned(),
        or_dash(&down),
        or_dash(reason),
    ]
}

fn quorum_on(name: &str, node: &OnNode) -> Vec<String> {
    let state = match (node.sorry, node.quorum) {
        (true, _) => "sorry",
        (false, Some(true)) => "quorum",
        (false, Some(false)) => "no quorum",
        (false, None) => "unknown",
    };
    let up = format!("{}/{} up", node.up, node.total);
    let cells = ["-", "-", "-", &up].map(str::to_owned);
    line(name, "(quorum)", &node.node, node.connected, state, cells)
}

fn state_row(name: &str, backend: &Backend, state: &State) -> Vec<String> {
    let cells = [
        state.administrative.clone(),
        state.weight.to_string(),
        or_dash(&state.since),
        or_dash(&state.reason),
    ];
    let subject = backend.address.to_string();
    line(
        name,
        &subject,
        &state.node,
        state.connected,
        &state.state,
        cells,
    )
}

fn line(
    name: &str,
    subject: &str,
    node: &str,
    connected: bool,
    state: &str,
    cells: [String; 4],
) -> Vec<String> {
    let connected = if connected { "yes" } else { "no" };
    let mut line: Vec<_> = [name, subject, node, connected, state]
        .map(str::to_owned)
        .into();
    line.extend(cells);
    line
}

fn or_dash(text: &str) -> String {
    match text.is_empty() {
        true => "-".to_owned(),
        false => text.to_owned(),
    }
}
