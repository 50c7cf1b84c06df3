// SPDX-License-Identifier: Apache-2.0

//! `portolanctl nodes`.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::columns::columns;
use crate::reply::Reply;

const TITLES: [&str; 9] = [
    "NODE",
    "CONNECTED",
    "SENT",
    "RECEIVED",
    "PROGRAMMED",
    "LAG",
    "REFUSED",
    "ERRORS",
    "HELD",
];

/// Further columns of `-o wide`.
const WIDE_TITLES: [&str; 4] = ["BEHIND", "PEER", "VERSION", "SESSIONS"];

#[derive(Debug, Deserialize)]
struct Node {
    node: String,
    connected: bool,
    sent: Option<u64>,
    received: Option<u64>,
    programmed: Option<u64>,
    /// In revisions.
    lag: Option<u64>,
    behind_ms: Option<u64>,
    refused_total: u32,
    errors_total: u32,
    held: Option<Held>,
    peer: Option<String>,
    agent_version: Option<String>,
    sessions: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Held {
    deleted: u32,
    records: u32,
}

/// Shows the answers of `/debug/nodes`, one of each controller; only nodes that are behind, if asked.
/// A node that several controllers know is shown as the one says to which it is connected.
pub(crate) fn show(answers: Vec<Value>, behind: bool, wide: bool) -> anyhow::Result<Reply> {
    let mut nodes: BTreeMap<String, Value> = BTreeMap::new();
    for mut answer in answers {
        let revision = answer["revision"].as_u64();
        let Value::Array(listed) = answer["nodes"].take() else {
            anyhow::bail!("the controller's answer has no nodes");
        };
        for node in listed {
            let name = node["node"].as_str().unwrap_or_default().to_owned();
            let is_behind = node["programmed"].as_u64() != revision;
            let shown = nodes.get(&name);
            let is_better =
                shown.is_none_or(|shown| !is_connected(shown) && is_newer(&node, shown));
            if is_better {
                let mut node = node;
                node["behind"] = is_behind.into();
                nodes.insert(name, node);
            }
        }
    }
    let mut nodes: Vec<_> = nodes.into_values().collect();
    if behind {
        nodes.retain(|node| node["behind"] == true);
    }
    let value = json!(nodes);
    let nodes: Vec<Node> =
        serde_json::from_value(value.clone()).context("the controller's answer")?;
    let mut titles = TITLES.to_vec();
    titles.extend(WIDE_TITLES.into_iter().filter(|_| wide));
    let mut rows = vec![titles.into_iter().map(str::to_owned).collect()];
    rows.extend(nodes.iter().map(|node| row(node, wide)));
    Ok(Reply::new(value, columns(&rows)))
}

fn is_connected(node: &Value) -> bool {
    node["connected"] == true
}

/// Returns `true` if an entry is of a later session than another one.
fn is_newer(node: &Value, than: &Value) -> bool {
    let at = |node: &Value| node["connected_at_ms"].as_u64();
    is_connected(node) || at(node) > at(than)
}

fn row(node: &Node, wide: bool) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let held = node.held.as_ref();
    let held = held.map(|held| format!("deletes {} of {}", held.deleted, held.records));
    let behind = node.behind_ms.map(|ms| format!("{ms}ms"));
    let mut row = vec![
        node.node.clone(),
        if node.connected { "yes" } else { "no" }.to_owned(),
        number(node.sent),
        number(node.received),
        number(node.programmed),
        number(node.lag),
        node.refused_total.to_string(),
        node.errors_total.to_string(),
        text(&held),
    ];
    if wide {
        row.push(text(&behind));
        row.push(text(&node.peer));
        row.push(text(&node.agent_version));
        row.push(number(node.sessions));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, programmed: Option<u64>) -> Value {
        json!({
            "node": name, "connected": true, "sent": 7, "received": 7, "connected_at_ms": 5,
            "programmed": programmed, "refused_total": 0, "errors_total": 2,
        })
    }

    fn answer() -> Value {
        let mut held = node("c", None);
        held["lag"] = json!(7);
        held["held"] = json!({ "deleted": 9, "records": 10, "remaining_ms": 0 });
        json!({ "revision": 7, "nodes": [node("a", Some(7)), node("b", Some(5)), held] })
    }

    #[test]
    fn all_nodes_or_those_behind() {
        let text = show(vec![answer()], false, false).unwrap().text;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let words: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["a", "yes", "7", "7", "7", "-", "0", "2", "-"]);
        assert!(
            lines[3].ends_with("-           7    0        2       deletes 9 of 10"),
            "{text}"
        );
        let text = show(vec![answer()], true, false).unwrap().text;
        let names: Vec<_> = text.lines().skip(1).map(|line| &line[..1]).collect();
        assert_eq!(names, ["b", "c"]);
    }

    #[test]
    fn a_node_is_shown_by_its_controller() {
        let gone = |at_ms: u64| {
            let mut gone = node("a", Some(3));
            gone["connected"] = false.into();
            gone["connected_at_ms"] = at_ms.into();
            json!({ "revision": 9, "nodes": [gone] })
        };
        for answers in [vec![gone(9), answer(), gone(1)], vec![answer(), gone(9)]] {
            let reply = show(answers, false, true).unwrap();
            assert_eq!(reply.value[0]["programmed"], 7);
            assert_eq!(reply.value.as_array().map(Vec::len), Some(3));
            assert!(reply.text.starts_with("NODE") && reply.text.contains("VERSION"));
        }
        let reply = show(vec![gone(1), gone(2)], false, false).unwrap();
        assert_eq!(reply.value[0]["connected_at_ms"], 2);
    }

    #[test]
    fn an_answer_without_nodes_is_an_error() {
        assert!(show(vec![json!({ "revision": 7 })], false, false).is_err());
    }
}
