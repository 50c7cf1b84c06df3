// SPDX-License-Identifier: Apache-2.0

//! `portolanctl status`.

use serde_json::{Value, json};

use crate::answers::UNANSWERED;
use crate::client::Client;
use crate::columns::columns;
use crate::problems;
use crate::reply::Reply;

const TITLES: [&str; 10] = [
    "CONTROLLER",
    "VERSION",
    "READY",
    "REVISION",
    "AGENTS",
    "BEHIND",
    "HOLDING",
    "ERRORS",
    "PROBLEMS",
    "DELETIONS-HELD",
];

/// Summarises each controller. One that does not answer has the error in its row.
pub(crate) async fn run(clients: &[Client]) -> anyhow::Result<Reply> {
    let mut controllers = Vec::new();
    for client in clients {
        let mut summary = match summary(client).await {
            Ok(summary) => summary,
            Err(error) if clients.len() == 1 => return Err(error),
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        summary["controller"] = client.name().into();
        controllers.push(summary);
    }
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    rows.extend(controllers.iter().map(row));
    let is_whole = controllers.iter().all(|found| found["error"].is_null());
    let reply = Reply::new(json!({ "controllers": controllers }), columns(&rows));
    Ok(reply.with_code(if is_whole { 0 } else { UNANSWERED }))
}

async fn summary(client: &Client) -> anyhow::Result<Value> {
    let (ready, reason) = client.get_text("/readyz").await?;
    let version = client.get("/debug/version").await?;
    let nodes = client.get("/debug/nodes").await?;
    let problems = client.get("/debug/problems").await?;
    // A relay holds no deletions of objects.
    let deletions = client.get("/debug/deletions").await.unwrap_or_default();
    Ok(summarise(
        ready == 200,
        &reason,
        &version,
        &nodes,
        &problems,
        &deletions,
    ))
}

fn summarise(
    is_ready: bool,
    reason: &str,
    version: &Value,
    nodes: &Value,
    problems: &Value,
    deletions: &Value,
) -> Value {
    let agents = nodes["nodes"].as_array().into_iter().flatten();
    let connected: Vec<_> = agents.filter(|node| node["connected"] == true).collect();
    let count = |is: fn(&Value) -> bool| connected.iter().filter(|node| is(node)).count();
    let held = deletions["held"].as_array().into_iter().flatten();
    let held: u64 = held.filter_map(|held| held["objects"].as_u64()).sum();
    json!({
        "version": version["version"],
        "ready": is_ready,
        "unreadyReason": (!is_ready).then_some(reason),
        "epoch": nodes["epoch"],
        "revision": nodes["revision"],
        "agents": {
            "connected": connected.len(),
            "behind": count(|node| !node["behind_ms"].is_null()),
            "holding": count(|node| !node["held"].is_null()),
            "withErrors": count(|node| node["errors_total"].as_u64() > Some(0)),
        },
        "problems": problems::list(problems).count(),
        "deletionsHeld": held,
    })
}

fn row(summary: &Value) -> Vec<String> {
    let name = summary["controller"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    if let Some(error) = summary["error"].as_str() {
        return vec![name, error.to_owned()];
    }
    let agents = &summary["agents"];
    vec![
        name,
        summary["version"].as_str().unwrap_or("-").to_owned(),
        match summary["ready"] == true {
            true => "yes".to_owned(),
            false => "no".to_owned(),
        },
        summary["revision"].to_string(),
        agents["connected"].to_string(),
        agents["behind"].to_string(),
        agents["holding"].to_string(),
        agents["withErrors"].to_string(),
        summary["problems"].to_string(),
        summary["deletionsHeld"].to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_counted_while_they_are_connected() {
        let agent = |connected: bool, behind: Option<u64>, errors: u32| {
            json!({ "connected": connected, "behind_ms": behind, "errors_total": errors,
                "held": behind.map(|_| json!({ "deleted": 1 })) })
        };
        let nodes = json!({ "epoch": "0a", "revision": 7, "nodes": [
            agent(true, None, 1), agent(true, Some(9), 0), agent(false, Some(9), 1),
        ] });
        let problems = json!({ "objects": ["a"], "files": ["b"] });
        let deletions = json!({ "held": [{ "objects": 3 }, { "objects": 4 }] });
        let version = json!({ "version": "1.0.0" });
        let mut found = summarise(true, "ok", &version, &nodes, &problems, &deletions);
        found["controller"] = "http://a".into();
        assert_eq!(
            row(&found),
            [
                "http://a", "1.0.0", "yes", "7", "2", "1", "1", "1", "2", "7"
            ]
        );
        let unready = summarise(
            false,
            "waiting for: source",
            &version,
            &nodes,
            &problems,
            &json!(null),
        );
        assert_eq!(unready["unreadyReason"], "waiting for: source");
        assert_eq!(unready["deletionsHeld"], 0);
    }
}
