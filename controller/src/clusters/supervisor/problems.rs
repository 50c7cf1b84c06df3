// SPDX-License-Identifier: Apache-2.0

//! What is wrong with the clusters of a policy, in words.

use portolan_policy::{Cluster, Objects, overlaps};

/// What is wrong with all clusters together: networks that overlap, clusters beyond the set's bound.
pub(super) fn of_networks(objects: &Objects) -> Vec<String> {
    let overlaps = overlaps(&objects.clusters).into_iter();
    let overlaps = overlaps.flat_map(|(name, found)| {
        let text = move |overlap| format!("Cluster {name}: {overlap}");
        found.into_iter().map(text)
    });
    let members = objects.members();
    let beyond = objects
        .clusters
        .keys()
        .filter(|name| !members.contains_key(name.as_str()));
    let beyond = beyond.map(|name| {
        format!(
            "Cluster {name}: QuotaExceeded: as many older Clusters as spec.quota.clusters allows"
        )
    });
    overlaps.chain(beyond).collect()
}

/// The policy's own cluster has no source of its own.
pub(super) fn unsupported(cluster: &Cluster) -> String {
    format!(
        "Cluster {}: spec.access.local: this version reads clusters from files, by kubeconfigFile, by \
         kubeconfigSecret and from edge controllers",
        cluster.meta.name
    )
}
