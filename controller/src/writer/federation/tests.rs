// SPDX-License-Identifier: Apache-2.0

use portolan_policy::{File, read};
use portolan_runtime::Vital;
use tokio_util::sync::CancellationToken;

use super::*;

/// A policy of these clusters.
fn policy(names: &[&str]) -> Objects {
    let clusters = names.iter().zip(1..).map(|(name, number)| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\n\
             spec: {{access: {{files: [x]}}, network: {{podCIDRs: [10.{number}.0.0/16]}}}}\n---\n"
        )
    });
    let text: String = clusters.collect();
    let reading = read(&[File {
        name: "p.yaml",
        text: &text,
    }]);
    assert_eq!(reading.problems, []);
    reading.objects
}

#[tokio::test]
async fn a_drain_of_a_cluster_that_left_the_policy_is_not_kept_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let (vital, _failures) = Vital::new(CancellationToken::new());
    let mut federated = Federated {
        saver: Saver::start(directory.path(), &vital),
        ..Federated::default()
    };
    let mut pipeline = Pipeline::default();
    federated.take_policies(&mut pipeline, policy(&["us-1", "eu-1"]), true);
    let drain = Drain {
        to: 50,
        over: Duration::ZERO,
    };
    federated.drain("eu-1", Some(drain)).unwrap();
    for names in [&["us-1"][..], &["us-1", "eu-1"]] {
        federated.take_policies(&mut pipeline, policy(names), true);
    }
    drop(federated);
    vital.ending.cancel();
    vital.tasks.close();
    vital.tasks.wait().await;
    let saved = Saved::read(directory.path()).unwrap();
    assert!(saved.drains.is_empty(), "{:?}", saved.drains);
}
