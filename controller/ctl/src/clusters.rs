// SPDX-License-Identifier: Apache-2.0

//! `portolanctl cluster list`.

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::answers::add;
use crate::columns::columns;
use crate::reply::Reply;

const TITLES: [&str; 8] = [
    "CLUSTER",
    "SERVED",
    "STATE",
    "STEP",
    "REVISION",
    "CONTACT",
    "CONNECTED",
    "PROGRAMMED",
];

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cluster {
    name: String,
    served: bool,
    state: Option<String>,
    step: Option<u8>,
    revision: u64,
    last_contact_seconds: Option<f64>,
    connected: usize,
    programmed: usize,
}

/// One of the answers of several controllers: all know the same clusters, and each its own agents.
pub(crate) fn merged(answers: Vec<Value>) -> Value {
    let mut answers = answers.into_iter();
    let mut all = answers.next().unwrap_or_default();
    let Some(clusters) = all["clusters"].as_array_mut() else {
        return all;
    };
    let others: Vec<Value> = answers.collect();
    let of_others = || {
        let lists = others.iter().map(|answer| answer["clusters"].as_array());
        lists.flatten().flatten()
    };
    for cluster in clusters {
        let name = cluster["name"].clone();
        for other in of_others().filter(|other| other["name"] == name) {
            add(cluster, other, &["connected", "programmed"]);
        }
    }
    all
}

/// Shows the answer of `/debug/clusters`, a line for each cluster.
pub(crate) fn show(answer: Value) -> anyhow::Result<Reply> {
    let clusters: Vec<Cluster> = serde_json::from_value(answer["clusters"].clone())
        .context("the controller's answer has no clusters")?;
    let mut rows = vec![TITLES.map(str::to_owned).to_vec()];
    rows.extend(clusters.iter().map(row));
    Ok(Reply::new(answer, columns(&rows)))
}

fn row(cluster: &Cluster) -> Vec<String> {
    let contact = cluster.last_contact_seconds;
    vec![
        match cluster.name.as_str() {
            "" => "-".to_owned(),
            name => name.to_owned(),
        },
        if cluster.served { "yes" } else { "no" }.to_owned(),
        cluster.state.clone().unwrap_or_else(|| "-".to_owned()),
        cluster
            .step
            .map_or_else(|| "-".to_owned(), |step| format!("{step}/20")),
        cluster.revision.to_string(),
        contact.map_or_else(|| "-".to_owned(), |silence| format!("{silence:.0}s ago")),
        cluster.connected.to_string(),
        format!("{}/{}", cluster.programmed, cluster.connected),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_cluster_has_a_line() {
        let eu = json!({"name": "eu-1", "served": true, "revision": 12, "lastContactSeconds": 0.6,
            "state": "Returning", "step": 5,
            "connected": 3, "programmed": 2});
        let us = json!({"name": "us-1", "served": false, "revision": 0, "connected": 1, "programmed": 0});
        let reply = show(json!({"clusters": [eu, us]})).unwrap();
        assert_eq!(
            reply.text,
            "CLUSTER  SERVED  STATE      STEP  REVISION  CONTACT  CONNECTED  PROGRAMMED\n\
             eu-1     yes     Returning  5/20  12        1s ago   3          2/3\n\
             us-1     no      -          -     0         -        1          0/1\n"
        );
        assert!(show(json!({})).is_err());
    }
}
