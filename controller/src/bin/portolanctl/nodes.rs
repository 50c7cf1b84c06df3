//! `portolanctl nodes`.

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::columns::columns;

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

#[derive(Debug, Deserialize)]
struct Node {
    node: String,
    connected: bool,
    sent: Option<u64>,
    received: Option<u64>,
    programmed: Option<u64>,
    /// Revisions.
    lag: Option<u64>,
    refused_total: u32,
    errors_total: u32,
    held: Option<Held>,
}

#[derive(Debug, Deserialize)]
struct Held {
    deleted: u32,
    records: u32,
}

/// Shows the answer of `/debug/nodes`; those alone that are behind its revision, if wanted.
pub(crate) fn show(answer: Value, behind: bool, json: bool) -> anyhow::Result<String> {
    let revision = answer["revision"].as_u64();
    let mut nodes = match answer {
        Value::Object(mut answer) => answer.remove("nodes").unwrap_or_default(),
        _ => Value::Null,
    };
    let all = nodes
        .as_array_mut()
        .context("the controller's answer: nodes")?;
    if behind {
        all.retain(|node| node["programmed"].as_u64() != revision);
    }
    if json {
        return crate::pretty(&nodes);
    }
    let nodes: Vec<Node> = serde_json::from_value(nodes).context("the controller's answer")?;
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    rows.extend(nodes.iter().map(row));
    Ok(columns(&rows))
}

fn row(node: &Node) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let held = node.held.as_ref();
    vec![
        node.node.clone(),
        if node.connected { "yes" } else { "no" }.to_owned(),
        number(node.sent),
        number(node.received),
        number(node.programmed),
        number(node.lag),
        node.refused_total.to_string(),
        node.errors_total.to_string(),
        held.map_or_else(
            || "-".to_owned(),
            |held| format!("deletes {} of {}", held.deleted, held.records),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> Value {
        let node = |name: &str, programmed: Option<u64>| {
            json!({
                "node": name, "connected": true, "sent": 7, "received": 7,
                "programmed": programmed, "refused_total": 0, "errors_total": 2,
            })
        };
        let mut held = node("c", None);
        held["lag"] = json!(7);
        held["held"] = json!({ "deleted": 9, "records": 10, "remaining_ms": 0 });
        json!({ "revision": 7, "nodes": [node("a", Some(7)), node("b", Some(5)), held] })
    }

    #[test]
    fn all_or_those_behind() {
        let text = show(answer(), false, false).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let words: Vec<_> = lines[1].split_whitespace().collect();
        assert_eq!(words, ["a", "yes", "7", "7", "7", "-", "0", "2", "-"]);
        assert!(
            lines[3].ends_with("-           7    0        2       deletes 9 of 10"),
            "{text}"
        );
        let text = show(answer(), true, false).unwrap();
        let names: Vec<_> = text.lines().skip(1).map(|line| &line[..1]).collect();
        assert_eq!(names, ["b", "c"]);
    }
}
