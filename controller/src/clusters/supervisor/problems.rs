// SPDX-License-Identifier: Apache-2.0

//! Problems with the clusters of a policy, in words.

use portolan_policy::{Cluster, Objects, may_be_node_ports, overlaps};

/// Returns the problems with all clusters together: networks that overlap, clusters beyond the set's bound; and ports
/// of gateways that Services may get.
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
    let ports = objects.clusters.iter().filter_map(|(name, cluster)| {
        let overlap = may_be_node_ports(cluster)?;
        Some(format!("Cluster {name}: {overlap}"))
    });
    overlaps.chain(beyond).chain(ports).collect()
}

/// The policy's own cluster has no source of its own.
pub(super) fn unsupported(cluster: &Cluster) -> String {
    format!(
        "Cluster {}: spec.access.local: this version reads clusters from files, by kubeconfigFile, by \
         kubeconfigSecret and from edge controllers",
        cluster.meta.name
    )
}

#[cfg(test)]
mod tests {
    use portolan_policy::{File, read};

    use super::*;

    #[test]
    fn ports_of_gateways_that_may_be_node_ports_are_a_problem_of_their_cluster() {
        let policy = |ports: &str| {
            let text = format!(
                "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: b}}\nspec:\n  \
                 access: {{files: [x]}}\n  network: {{mode: Gateway, podCIDRs: [10.1.0.0/16], \
                 nodeCIDRs: [192.168.2.0/24], gateway: {{ports: {ports}}}}}\n"
            );
            let found = read(&[File {
                name: "p.yaml",
                text: &text,
            }]);
            assert_eq!(found.objects.clusters.len(), 1);
            of_networks(&found.objects)
        };
        assert_eq!(policy("20000-29999"), [""; 0]);
        let found = policy("20000-31000");
        let start = "Cluster b: spec.network.gateway.ports: 20000-31000 overlaps 30000-32767, the node ports";
        assert!(found.len() == 1 && found[0].starts_with(start), "{found:?}");
    }
}
