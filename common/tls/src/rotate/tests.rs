// SPDX-License-Identifier: Apache-2.0

use std::fs;
use std::ops::Range;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustls::ServerConfig;
use tempfile::TempDir;

use super::*;
use crate::ServerFiles;
use crate::issue::{Authority, Issued};

const HOUR: Duration = Duration::from_secs(3600);

fn hours(count: u32) -> Range<SystemTime> {
    let now = SystemTime::now();
    now - HOUR..now + HOUR * count
}

fn issue(count: u32) -> (String, Issued) {
    let (authority, _) = Authority::create("test", hours(count)).unwrap();
    let issued = authority.server(&["localhost"], hours(count)).unwrap();
    (authority.cert().to_owned(), issued)
}

fn write(dir: &Path, (ca, issued): &(String, Issued)) {
    fs::write(dir.join("ca.crt"), ca).unwrap();
    fs::write(dir.join("tls.crt"), &issued.cert).unwrap();
    fs::write(dir.join("tls.key"), &issued.key).unwrap();
}

fn files(dir: &Path) -> ServerFiles {
    ServerFiles {
        cert: dir.join("tls.crt"),
        key: dir.join("tls.key"),
        client_ca: Some(dir.join("ca.crt")),
        anonymous: false,
    }
}

fn opened(hours: u32) -> (TempDir, Rotating<ServerConfig>) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &issue(hours));
    let rotating = files(dir.path()).open("tls").unwrap();
    (dir, rotating)
}

#[test]
fn changed_files_are_loaded() {
    let (dir, mut rotating) = opened(1);
    let value = rotating.subscribe();
    let before = Arc::clone(&value.borrow());
    rotating.poll();
    assert!(!value.has_changed().unwrap());
    let expired = rotating.health.expires();
    write(dir.path(), &issue(2));
    rotating.poll();
    assert!(value.has_changed().unwrap() && !Arc::ptr_eq(&before, &value.borrow()));
    let (_, health) = rotating.health();
    assert_eq!((health.reloads(), health.is_broken()), (1, false));
    assert!(health.expires() >= expired + 3600);
    rotating.poll();
    assert_eq!(health.reloads(), 1);
}

#[test]
fn a_broken_file_is_reported_once_and_changes_nothing() {
    let (dir, mut rotating) = opened(1);
    let value = rotating.subscribe();
    let (_, health) = rotating.health();
    for (number, file) in (1..).zip(["tls.crt", "tls.key", "ca.crt"]) {
        let good = fs::read(dir.path().join(file)).unwrap();
        fs::write(dir.path().join(file), "-----BEGIN NOTHING-----\n").unwrap();
        for _ in 0..4 {
            rotating.poll();
        }
        assert_eq!((health.failures(), health.is_broken()), (number, true));
        fs::write(dir.path().join(file), good).unwrap();
        rotating.poll();
        assert!(!health.is_broken());
    }
    assert_eq!(health.failures(), 3);
    fs::remove_file(dir.path().join("tls.key")).unwrap();
    rotating.poll();
    rotating.poll();
    assert!(health.is_broken());
    // The first three repairs reload the content in force.
    assert_eq!(health.reloads(), 3);
    assert!(value.has_changed().unwrap());
}

#[test]
fn a_half_written_pair_is_not_a_failure() {
    let (dir, mut rotating) = opened(1);
    let (_, health) = rotating.health();
    let next = issue(2);
    fs::write(dir.path().join("tls.crt"), &next.1.cert).unwrap();
    rotating.poll();
    assert_eq!((health.reloads(), health.failures()), (0, 0));
    fs::write(dir.path().join("tls.key"), &next.1.key).unwrap();
    rotating.poll();
    assert_eq!((health.reloads(), health.failures()), (1, 0));
}

/// The layout of the kubelet: `tls.crt` -> `..data/tls.crt`, `..data` -> a directory by date.
#[test]
fn a_swapped_symlink_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (name, hours) in [("..1", 1), ("..2", 2)] {
        fs::create_dir(at(name)).unwrap();
        write(&at(name), &issue(hours));
    }
    symlink("..1", at("..data")).unwrap();
    for file in ["tls.crt", "tls.key", "ca.crt"] {
        symlink(format!("..data/{file}"), at(file)).unwrap();
    }
    let mut rotating = files(dir.path()).open("tls").unwrap();
    symlink("..2", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    rotating.poll();
    assert_eq!(rotating.health.reloads(), 1);
}

#[test]
fn unusable_files_are_named_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let error = files(dir.path()).open("tls").unwrap_err();
    assert!(error.to_string().contains("tls.crt"), "{error}");
    let (ca, issued) = issue(1);
    let (_, other) = issue(1);
    let mixed = Issued {
        key: other.key,
        ..issued
    };
    write(dir.path(), &(ca, mixed));
    let error = files(dir.path()).open("tls").unwrap_err();
    assert!(error.to_string().contains("tls.key"), "{error}");
    fs::write(dir.path().join("tls.key"), vec![b'x'; 2 << 20]).unwrap();
    let error = files(dir.path()).open("tls").unwrap_err();
    assert!(error.to_string().contains("larger"), "{error}");
}

#[tokio::test]
async fn files_are_followed_until_cancellation() {
    let (dir, rotating) = opened(1);
    let mut value = rotating.subscribe();
    let token = CancellationToken::new();
    let task = tokio::spawn(rotating.follow(Duration::from_millis(10), token.clone()));
    write(dir.path(), &issue(2));
    tokio::time::timeout(Duration::from_secs(20), value.changed())
        .await
        .unwrap()
        .unwrap();
    token.cancel();
    task.await.unwrap();
}

#[test]
fn files_that_are_missing_at_first_are_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("number");
    let load = |files: &[File]| {
        let text = String::from_utf8_lossy(&files[0].content);
        let value: u32 = text.trim().parse().map_err(|error| files[0].error(error))?;
        Ok(Loaded {
            value,
            expires: None,
        })
    };
    let mut rotating = Rotating::open_or("numbers", vec![path.clone()], 7, load);
    let value = rotating.subscribe();
    let health = rotating.health().1;
    rotating.poll();
    assert!(**value.borrow() == 7 && health.is_broken());
    fs::write(&path, "none").unwrap();
    rotating.poll();
    rotating.poll();
    assert!(**value.borrow() == 7 && health.is_broken());
    fs::write(&path, "8").unwrap();
    rotating.poll();
    assert!(**value.borrow() == 8 && !health.is_broken());
    let again = Rotating::open_or("numbers", vec![path], 7, load);
    assert!(**again.subscribe().borrow() == 8 && !again.health().1.is_broken());
}
