// SPDX-License-Identifier: Apache-2.0

use super::*;

/// The pause for a first attempt, which must fail. Without it a test says nothing.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap();
}

#[tokio::test]
async fn maintenance_that_cannot_be_saved_is_saved_as_soon_as_it_can() {
    let root = tempfile::tempdir().unwrap();
    let files = root.path().join("maintenance");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("10.0.0.2:80"), "").unwrap();
    let state = root.path().join("state");
    let block = || std::fs::write(&state, "a file in place of the directory").unwrap();
    block();
    let store = store(&state);
    let mut in_force = store.in_force();
    let (directory, seen) = watch::channel(Some(Some(files)));
    let token = CancellationToken::new();
    let keeping = tokio::spawn(store.clone().keep_maintenance(seen, token.clone()));
    drop(in_force.wait_for(|all| !all.is_empty()).await.unwrap());
    tokio::time::sleep(PAUSE).await;
    std::fs::remove_file(&state).unwrap();
    until(|| Maintenance::load(&state) == maintenance_of("10.0.0.2:80")).await;
    // So is the end of all maintenance, with no directory to look at.
    std::fs::remove_dir_all(&state).unwrap();
    block();
    directory.send_replace(Some(None));
    drop(in_force.wait_for(Overrides::is_empty).await.unwrap());
    tokio::time::sleep(PAUSE).await;
    std::fs::remove_file(&state).unwrap();
    until(|| state.join("maintenance.json").exists()).await;
    assert_eq!(Maintenance::load(&state), Maintenance::default());
    token.cancel();
    keeping.await.unwrap();
}

#[tokio::test]
async fn maintenance_is_saved_while_its_directory_cannot_be_read() {
    let root = tempfile::tempdir().unwrap();
    let files = root.path().join("maintenance");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("10.0.0.2:80"), "").unwrap();
    let state = root.path().join("state");
    std::fs::write(&state, "a file in place of the directory").unwrap();
    let store = store(&state);
    let mut in_force = store.in_force();
    let (_directory, seen) = watch::channel(Some(Some(files.clone())));
    let token = CancellationToken::new();
    let keeping = tokio::spawn(store.clone().keep_maintenance(seen, token.clone()));
    drop(in_force.wait_for(|all| !all.is_empty()).await.unwrap());
    tokio::time::sleep(PAUSE).await;
    // At once: an empty directory would end the maintenance.
    std::fs::rename(&files, root.path().join("away")).unwrap();
    std::fs::remove_file(&state).unwrap();
    until(|| Maintenance::load(&state) == maintenance_of("10.0.0.2:80")).await;
    assert_eq!(in_force.borrow().len(), 1);
    token.cancel();
    keeping.await.unwrap();
}
