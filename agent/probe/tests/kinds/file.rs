// SPDX-License-Identifier: Apache-2.0

use std::io::Write as _;
use std::path::Path;

use portolan_health::{DynamicWeight, Outcome};
use portolan_model::check::{FileProbe, Probe};

use crate::rig::{check, failure, run};

/// The outcome of a check of a path.
async fn told_of(path: &Path) -> Outcome {
    let path = path.to_str().unwrap().to_owned();
    let probe = Probe::File(FileProbe { path, weight: 0 });
    run(&check(probe), "127.0.0.1:1".parse().unwrap()).await
}

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

#[tokio::test]
async fn what_is_no_regular_file_fails_without_a_wait() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    let outcome = told_of(&pipe).await;
    // A reader that waits for a writer would keep the test from its end.
    let both_ends = std::fs::File::options().read(true).write(true).open(&pipe);
    drop(both_ends.unwrap());
    for (path, outcome) in [
        (pipe.as_path(), outcome),
        (directory.path(), told_of(directory.path()).await),
        (
            Path::new("/dev/null"),
            told_of(Path::new("/dev/null")).await,
        ),
    ] {
        let expected = format!("{}: not a regular file", path.display());
        assert_eq!(failure(&outcome), expected);
    }
}

#[tokio::test]
async fn the_size_of_a_file_does_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(format!("7{}", "\n".repeat(100)).as_bytes())
        .unwrap();
    // More than the machine's memory, none of it on the disk.
    file.set_len(1 << 43).unwrap();
    assert_eq!(told_of(&path).await, Outcome::pass());
}
