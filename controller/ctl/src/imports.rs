// SPDX-License-Identifier: Apache-2.0

//! `portolanctl explain-import` and `portolanctl explain-export`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use portolan_policy::File;
use portolan_select::{
    PlannedImport, PlannedShares, ShownCluster, ShownExport, ShownImport, ShownPort,
};
use serde::Deserialize;
use serde_json::Value;

use crate::answers::add;
use crate::columns::columns;
use crate::reply::Reply;

const TITLES: [&str; 9] = [
    "TIER", "LOAD", "CLUSTER", "STATE", "READY", "HEALTH", "SHARE", "WEIGHTS", "REASON",
];

#[derive(Debug, Deserialize)]
struct Answer {
    import: ShownImport,
    phases: BTreeMap<String, String>,
    revision: u64,
    connected: usize,
    programmed: usize,
}

/// One of the answers of several controllers: all know the same import, and each its own agents.
pub(crate) fn merged(answers: Vec<Value>) -> Value {
    let mut answers = answers.into_iter();
    let mut all = answers.next().unwrap_or_default();
    for other in answers {
        add(&mut all, &other, &["connected", "programmed"]);
    }
    all
}

/// Shows an import: a table for each port and family, and the clusters that do not serve it.
pub(crate) fn show(value: Value) -> anyhow::Result<Reply> {
    let answer: Answer =
        serde_json::from_value(value.clone()).context("the controller's answer")?;
    let import = &answer.import;
    let vips: Vec<_> = import.vips.iter().map(ToString::to_string).collect();
    let mut text = format!("{}@clusterset in {}: ", import.name, import.cluster);
    // Writing to a String cannot fail.
    let _ = match (import.exists, vips.as_slice()) {
        (false, _) => writeln!(text, "no such import"),
        (true, []) => writeln!(text, "{}, no VIP; {}", import.kind, import.policy),
        (true, vips) => writeln!(text, "VIP {}; {}", vips.join(", "), import.policy),
    };
    if let Some(policy) = &import.nodes {
        let _ = writeln!(text, "at nodes of ImportPolicy {policy} alone");
    }
    for port in &import.ports {
        text.push_str(&of_port(port, &answer.phases));
    }
    if !import.affinity_ends.is_empty() {
        let _ = writeln!(
            text,
            "affinity reaches the gateways of {}: connections of a client are spread behind them",
            import.affinity_ends.join(", ")
        );
    }
    for (cluster, why) in &import.hidden {
        let state = answer.phases.get(cluster).map_or("-", String::as_str);
        let _ = writeln!(text, "{cluster} ({state}): {why}");
    }
    if import.exists {
        let (programmed, connected) = (answer.programmed, answer.connected);
        let revision = answer.revision;
        let _ = writeln!(
            text,
            "programmed on {programmed} of {connected} nodes, revision {revision}"
        );
        if import.pending {
            text.push_str(
                "changes of objects wait to be published; nodes may not have been sent them\n",
            );
        }
    }
    Ok(Reply::new(value, text))
}

fn of_port(port: &ShownPort, phases: &BTreeMap<String, String>) -> String {
    let mut title = format!("port {} {}", port.port, port.family);
    if let Some(scheduler) = &port.scheduler {
        let _ = write!(title, ", scheduler {scheduler}");
    }
    if port.panic {
        title.push_str(", panic: too few endpoints are ready, all count alike");
    }
    if port.error_permille > 0 {
        let _ = write!(
            title,
            ", weights off by up to {} permille",
            port.error_permille
        );
    }
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    rows.extend(port.clusters.iter().map(|cluster| row(cluster, phases)));
    format!("{title}\n{}", columns(&rows))
}

fn row(cluster: &ShownCluster, phases: &BTreeMap<String, String>) -> Vec<String> {
    let dash = || "-".to_owned();
    let weights = cluster.weights.iter();
    let weights: Vec<_> = weights
        .map(|(count, weight)| format!("{count}×{weight}"))
        .collect();
    vec![
        cluster.tier.map_or_else(dash, |tier| tier.to_string()),
        cluster.load.map_or_else(dash, |load| load.to_string()),
        cluster.cluster.clone(),
        phases.get(&cluster.cluster).cloned().unwrap_or_else(dash),
        format!("{}/{}", cluster.ready, cluster.expected),
        format!("{}/20", cluster.health),
        cluster
            .share_permille
            .map_or_else(dash, |share| format!("{}.{}%", share / 10, share % 10)),
        if weights.is_empty() {
            dash()
        } else {
            weights.join("+")
        },
        reason(cluster),
    ]
}

/// Why a cluster has its share, and the gateways that it is reached by.
fn reason(cluster: &ShownCluster) -> String {
    let gateways: Vec<_> = cluster.gateways.iter().map(ToString::to_string).collect();
    let by = match gateways.as_slice() {
        [] => return cluster.reason.clone(),
        gateways => format!("by {}", gateways.join(", ")),
    };
    if cluster.reason.is_empty() {
        by
    } else {
        format!("{}; {by}", cluster.reason)
    }
}

/// Shows an export: its conditions, and who imports it.
pub(crate) fn show_export(value: Value) -> anyhow::Result<Reply> {
    let export: ShownExport =
        serde_json::from_value(value.clone()).context("the controller's answer")?;
    let mut text = format!("{} of {}: ", export.name, export.cluster);
    let _ = match (&export.valid, &export.ready) {
        (Some(valid), Some(ready)) => writeln!(text, "{valid}, {ready}"),
        _ => writeln!(text, "not exported"),
    };
    if let Some(conflicts) = &export.conflicts {
        let _ = writeln!(text, "conflict: {conflicts}");
    }
    for problem in &export.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    for gateway in &export.gateways {
        let places = gateway.places.iter();
        let places: Vec<_> = places.map(|(at, node)| format!("{at} ({node})")).collect();
        let (port, importers) = (&gateway.port, gateway.importers.join(", "));
        let _ = writeln!(
            text,
            "gateways for {importers}: port {port} at {}",
            places.join(", ")
        );
    }
    let mut rows = vec![
        ["IMPORTER", "IMPORTS", "REASON"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(
        export
            .importers
            .iter()
            .map(|(cluster, answer)| match answer {
                Ok(name) => vec![cluster.clone(), "yes".to_owned(), format!("as {name}")],
                Err(why) => vec![cluster.clone(), "no".to_owned(), why.clone()],
            }),
    );
    text.push_str(&columns(&rows));
    Ok(Reply::new(value, text))
}

/// The text of a policy.
///
/// # Errors
/// If a file cannot be read, or anything is wrong with an object.
pub(crate) fn read_policy(files: &[PathBuf]) -> anyhow::Result<String> {
    let mut texts = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| path.display().to_string())?;
        texts.push((path.display().to_string(), text));
    }
    let files = texts.iter().map(|(name, text)| File { name, text });
    let reading = portolan_policy::read(&files.collect::<Vec<_>>());
    let problems = reading.problems.iter();
    let mut problems = problems.filter(|one| !one.fault.error.reason().is_warning());
    if let Some(first) = problems.next() {
        anyhow::bail!("{first}");
    }
    let texts: Vec<_> = texts.into_iter().map(|(_, text)| text).collect();
    Ok(texts.join("\n---\n"))
}

/// Shows what another policy would change.
pub(crate) fn show_plan(value: Value) -> anyhow::Result<Reply> {
    let imports: Vec<PlannedImport> =
        serde_json::from_value(value["imports"].clone()).context("the controller's answer")?;
    if imports.is_empty() {
        return Ok(Reply::new(value, String::from("no import would change\n")));
    }
    let shares = |shares: &Option<PlannedShares>| {
        let Some(shares) = shares else {
            return "none".to_owned();
        };
        let nodes = shares.nodes.as_ref();
        let nodes = nodes.map(|policy| format!(", at nodes of ImportPolicy {policy}"));
        let nodes = nodes.unwrap_or_default();
        if shares.permille.is_empty() {
            return format!("of {}{nodes}", shares.clusters.join(", "));
        }
        let parts = shares.permille.iter();
        let parts = parts.map(|(name, share)| {
            let by = shares.gateways.get(name).map_or(0, Vec::len);
            let by = match by {
                0 => String::new(),
                1 => String::from(" by 1 gateway"),
                more => format!(" by {more} gateways"),
            };
            format!("{name} {}.{}%{by}", share / 10, share % 10)
        });
        parts.collect::<Vec<_>>().join(", ") + &nodes
    };
    let mut rows = vec![
        ["CLUSTER", "IMPORT", "NOW", "THEN"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(imports.iter().map(|import| {
        let (cluster, name) = (import.cluster.clone(), import.name.clone());
        let refused = import.refused.iter();
        let refused = refused.map(|(cluster, why)| format!("; {cluster}: {why}"));
        let after = shares(&import.after) + &refused.collect::<String>();
        vec![cluster, name, shares(&import.before), after]
    }));
    let text = columns(&rows);
    Ok(Reply::new(value, text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_import_has_a_line_for_each_cluster() {
        let cluster = |name: &str, tier: u32, share: Option<u32>, reason: &str| {
            json!({"tier": tier, "load": 14, "cluster": name, "step": 20, "ready": 5, "expected": 10,
                "health": 14, "sharePermille": share, "weights": [[4, 10], [1, 9]], "reason": reason})
        };
        let eu = cluster("eu-1", 1, Some(700), "below the minimum: 6/20 go on");
        let port = json!({"port": "http 80/TCP", "family": "IPv4", "panic": false, "errorPermille": 0,
            "scheduler": "wrr", "clusters": [eu]});
        let import = json!({"cluster": "eu-1", "name": "shop/web", "exists": true, "kind": "ClusterSetIP",
            "vips": ["10.112.3.7"], "policy": "TrafficPolicy web: no other policy selects it, minHealthy 70% Proportional",
            "ports": [port], "affinityEnds": ["ap-2"], "hidden": [["ap-1", "not imported: denied by ImportPolicy deny-ap"]]});
        let answer = json!({"import": import, "phases": {"eu-1": "Ready"}, "revision": 812,
            "connected": 2, "programmed": 2});
        assert_eq!(
            show(answer).unwrap().text,
            "shop/web@clusterset in eu-1: VIP 10.112.3.7; TrafficPolicy web: no other policy selects it, \
             minHealthy 70% Proportional\n\
             port http 80/TCP IPv4, scheduler wrr\n\
             TIER  LOAD  CLUSTER  STATE  READY  HEALTH  SHARE  WEIGHTS   REASON\n\
             1     14    eu-1     Ready  5/10   14/20   70.0%  4×10+1×9  below the minimum: 6/20 go on\n\
             affinity reaches the gateways of ap-2: connections of a client are spread behind them\n\
             ap-1 (-): not imported: denied by ImportPolicy deny-ap\n\
             programmed on 2 of 2 nodes, revision 812\n"
        );
    }

    #[test]
    fn a_plan_has_a_line_for_each_import_that_changes() {
        let shares = |permille: Value| json!({"policy": "", "permille": permille, "clusters": ["eu-1", "us-1"]});
        let changed = json!({"cluster": "eu-1", "name": "shop/web", "before": shares(json!({"eu-1": 1000})),
            "after": shares(json!({"eu-1": 700, "us-1": 300}))});
        let added = json!({"cluster": "us-1", "name": "shop/api", "before": null, "after": shares(json!({}))});
        assert_eq!(
            show_plan(json!({"imports": [changed, added]}))
                .unwrap()
                .text,
            "CLUSTER  IMPORT    NOW          THEN\n\
             eu-1     shop/web  eu-1 100.0%  eu-1 70.0%, us-1 30.0%\n\
             us-1     shop/api  none         of eu-1, us-1\n"
        );
        let mut by_gateway = shares(json!({"eu-1": 1000}));
        by_gateway["gateways"] = json!({"eu-1": ["192.168.1.1:20001"]});
        let moved =
            json!({"cluster": "us-1", "name": "shop/api", "before": null, "after": by_gateway});
        let text = show_plan(json!({"imports": [moved]})).unwrap().text;
        assert!(text.ends_with("none  eu-1 100.0% by 1 gateway\n"), "{text}");
        let refused = json!({"cluster": "us-1", "name": "shop/api", "before": shares(json!({"eu-1": 1000})),
            "after": null, "refused": {"eu-1": "not exported: spec.quota.endpoints: 3"}});
        let text = show_plan(json!({"imports": [refused]})).unwrap().text;
        assert!(
            text.ends_with("none; eu-1: not exported: spec.quota.endpoints: 3\n"),
            "{text}"
        );
        let nothing = show_plan(json!({"imports": []})).unwrap();
        assert_eq!(nothing.text, "no import would change\n");
    }

    #[test]
    fn an_export_has_a_line_for_each_importer() {
        let answer = json!({"cluster": "us-1", "name": "shop/web", "valid": "Valid", "ready": "Exported",
            "conflicts": null, "problems": ["endpoints: AddressOutsideNetwork: 10.9.0.1"],
            "gateways": [{"port": "http TCP", "places": [["192.168.1.2:20011", "n2"]], "importers": ["eu-1"]}],
            "importers": [["eu-1", {"Ok": "shop/web"}], ["us-1", {"Err": "no"}]]});
        assert_eq!(
            show_export(answer).unwrap().text,
            "shop/web of us-1: Valid, Exported\n\
             problem: endpoints: AddressOutsideNetwork: 10.9.0.1\n\
             gateways for eu-1: port http TCP at 192.168.1.2:20011 (n2)\n\
             IMPORTER  IMPORTS  REASON\n\
             eu-1      yes      as shop/web\n\
             us-1      no       no\n"
        );
    }
}
