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
    if !import.shadowed.is_empty() {
        let shadowed = import.shadowed.join(", ");
        let _ = writeln!(
            text,
            "not applied, since another one comes first: TrafficPolicy {shadowed}"
        );
    }
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

/// Reason why a cluster has its share, and the gateways that it is reached by.
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
mod tests;
