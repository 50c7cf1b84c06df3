// SPDX-License-Identifier: Apache-2.0

use portolan_health::{DynamicWeight, Outcome};
use portolan_model::check::{FileProbe, Probe};

use crate::rig::{check, failure, run};

async fn told(content: &str, weight: i32) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("role");
    std::fs::write(&path, content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    run(
        &check(Probe::File(FileProbe { path, weight })),
        "127.0.0.1:1".parse().unwrap(),
    )
    .await
}

#[tokio::test]
async fn a_number_is_down_or_up_with_its_weight() {
    let weight = |weight| Outcome::Pass {
        weight: Some(DynamicWeight::Absolute(weight)),
    };
    assert_eq!(told("0\n", 0).await, Outcome::pass());
    assert_eq!(told("7", 0).await, Outcome::pass());
    assert_eq!(told(" 7 \n", 3).await, weight(21));
    assert_eq!(told("7", -3).await, weight(0));
    assert_eq!(told("9223372036854775807", 3).await, weight(65_535));
    assert_eq!(failure(&told("-1\n", 3).await), "-1 in the file");
}

#[tokio::test]
async fn a_file_that_is_no_number_fails() {
    for content in ["", "up", "1 2", "1.5", "\u{0}"] {
        let outcome = told(content, 1).await;
        assert!(
            failure(&outcome).ends_with("is no number"),
            "{content:?}: {outcome:?}"
        );
    }
    let missing = FileProbe {
        path: "/nonexistent/role".to_owned(),
        weight: 0,
    };
    let outcome = run(&check(Probe::File(missing)), "127.0.0.1:1".parse().unwrap()).await;
    assert_eq!(
        failure(&outcome),
        "/nonexistent/role: No such file or directory"
    );
}
