// SPDX-License-Identifier: Apache-2.0

//! Pods, which are watched for their weights only.

use super::*;

#[tokio::test(start_paused = true)]
async fn pods_are_watched_on_request_and_sent_if_they_have_a_weight() {
    let mut rig = Rig::watching(PAGED_WITH_PODS);
    for path in [SERVICES, SLICES, NODES] {
        rig.server.list(path, &[], "1").await;
        rig.until("retain").await;
    }
    let pod = |name: &str, version: &str, weight: Value| {
        json!({"metadata": {
            "name": name,
            "namespace": "prod",
            "resourceVersion": version,
            "annotations": {"portolan.dev/weight": weight, "other": "x"},
        }})
    };
    let mut plain = pod("plain", "2", json!(null));
    plain["metadata"]["annotations"] = json!({});
    let listed = [
        pod("heavy", "1", json!("3")),
        plain,
        pod("bad", "3", json!("?")),
    ];
    rig.server.list(PODS, &listed, "3").await;
    let told = [
        "put Pod c/prod/heavy",
        "refuse Pod c/prod/bad: metadata.annotations[portolan.dev/weight]: \"?\": expected 0 to \
         65535; ignored",
        "retain Pod c: c/prod/bad c/prod/heavy",
        "Synced",
    ];
    assert_eq!(rig.until("Synced").await, told);
    let mut pods = rig.server.watch(PODS).await;
    let mut lighter = pod("heavy", "4", json!(null));
    lighter["metadata"]["annotations"] = json!(null);
    pods.send("MODIFIED", lighter).await;
    assert_eq!(rig.until("delete").await, ["delete Pod c/prod/heavy"]);
    assert_eq!(rig.stats.of(Kind::Pod).listings(), 1);
}
