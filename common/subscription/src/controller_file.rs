// SPDX-License-Identifier: Apache-2.0

//! A file with the addresses of controllers, which is followed while the program runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan_runtime::AtomicFile;
use portolan_tls::{File, FileError, Loaded, Rotating, read};
use tokio::sync::watch;
use tonic::transport::Uri;

use crate::endpoint;

/// Name of the file in the state directory with the list that was in force last.
const SAVED: &str = "controllers";

/// Reads a list of controllers: one `host:port` a line, without empty lines and comments from `#` on.
///
/// # Errors
/// With the file and the line of the first bad address, or if there is none at all.
pub fn read_controllers(path: &Path) -> Result<Vec<Uri>, FileError> {
    parse(&read(path)?)
}

/// Opens a list of controllers to be followed. Until it can be used, the list that was in force last
/// is: that of the state directory, or none.
#[must_use]
pub fn follow_controllers(path: PathBuf, state_dir: &Path) -> Rotating<Vec<Uri>> {
    let saved = state_dir.join(SAVED);
    let last = match saved.exists() {
        true => read_controllers(&saved).unwrap_or_else(|error| {
            tracing::warn!("{error}: the last list of controllers is not used");
            Vec::new()
        }),
        false => Vec::new(),
    };
    Rotating::open_or("controllers", vec![path], last, |files| {
        let [file] = files else {
            return Ok(loaded(Vec::new()));
        };
        parse(file).map(loaded)
    })
}

fn loaded(value: Vec<Uri>) -> Loaded<Vec<Uri>> {
    Loaded {
        value,
        expires: None,
    }
}

/// Keeps the list in force in the state directory, until the list is no longer followed.
pub async fn keep_controllers(mut list: watch::Receiver<Arc<Vec<Uri>>>, state_dir: PathBuf) {
    loop {
        let text: String = list.borrow_and_update().iter().map(line).collect();
        let path = state_dir.join(SAVED);
        if !text.is_empty() {
            let written = tokio::task::spawn_blocking(move || {
                let is_saved = std::fs::read_to_string(&path).is_ok_and(|saved| saved == text);
                let file = AtomicFile::new(&path).creating_directory();
                let written = if is_saved {
                    Ok(())
                } else {
                    file.write(text.as_bytes())
                };
                written.map_err(|error| FileError::new(&path, error))
            });
            if let Ok(Err(error)) = written.await {
                tracing::warn!("{error}: the list of controllers is not saved");
            }
        }
        if list.changed().await.is_err() {
            return;
        }
    }
}

fn line(uri: &Uri) -> String {
    let address = uri.authority().map_or("", |authority| authority.as_str());
    format!("{address}\n")
}

fn parse(file: &File) -> Result<Vec<Uri>, FileError> {
    let text = str::from_utf8(&file.content).map_err(|error| file.error(error))?;
    let mut endpoints = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let address = line.split('#').next().unwrap_or_default().trim();
        if address.is_empty() {
            continue;
        }
        let parsed = endpoint(address);
        let parsed = parsed.map_err(|error| file.error(format!("line {}: {error}", number + 1)))?;
        if !endpoints.contains(&parsed) {
            endpoints.push(parsed);
        }
    }
    if endpoints.is_empty() {
        return Err(file.error("no address of a controller"));
    }
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use super::*;

    fn addresses(list: &[Uri]) -> Vec<String> {
        list.iter().map(|uri| line(uri).trim().to_owned()).collect()
    }

    #[test]
    fn bad_line_is_named_and_comments_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read_controllers(&path).map_err(|error| error.to_string())
        };
        let good = read("# two\n10.0.0.1:9443\n\n [fd00::1]:9443 # b\n10.0.0.1:9443\n");
        assert_eq!(
            addresses(&good.unwrap()),
            ["10.0.0.1:9443", "[fd00::1]:9443"]
        );
        for (text, part) in [
            (
                "10.0.0.1:9443\nten:x\n",
                "list: line 2: \"ten:x\": expected host:port",
            ),
            ("", "list: no address of a controller"),
            ("# none\n", "list: no address of a controller"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(read_controllers(&dir.path().join("none")).is_err());
    }

    /// Replaces the file as the kubelet does: by another directory behind a symlink.
    fn publish(dir: &Path, version: &str, text: &str) {
        let files = dir.join(version);
        fs::create_dir(&files).unwrap();
        fs::write(files.join("controllers"), text).unwrap();
        let link = dir.join("new");
        std::os::unix::fs::symlink(version, &link).unwrap();
        fs::rename(link, dir.join("data")).unwrap();
    }

    #[tokio::test]
    async fn last_good_list_is_in_force_also_after_a_restart() {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().join("data/controllers");
        let token = CancellationToken::new();
        let start = || {
            let files = follow_controllers(path.clone(), state.path());
            let (list, health) = (files.subscribe(), files.health().1);
            let kept = keep_controllers(list.clone(), state.path().to_owned());
            tokio::spawn(kept);
            tokio::spawn(files.follow(Duration::from_millis(10), token.clone()));
            (list, health)
        };
        let (mut list, health) = start();
        assert!(list.borrow().is_empty() && health.is_broken());
        for (version, address) in [("1", "10.0.0.1:1"), ("2", "10.0.0.2:2")] {
            publish(dir.path(), version, &format!("{address}\n"));
            let found = list.wait_for(|list| addresses(list) == [address]).await;
            found.unwrap();
        }
        publish(dir.path(), "3", "10.0.0.3\n");
        while !health.is_broken() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(addresses(&list.borrow()), ["10.0.0.2:2"]);
        let saved = state.path().join(SAVED);
        while !fs::read_to_string(&saved).is_ok_and(|text| text == "10.0.0.2:2\n") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (list, _) = start();
        assert_eq!(addresses(&list.borrow()), ["10.0.0.2:2"]);
    }
}
