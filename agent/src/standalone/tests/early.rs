// SPDX-License-Identifier: Apache-2.0

//! Tables before and at the first reading of all files.

use super::*;

#[tokio::test]
async fn the_table_is_this_nodes_and_comes_after_syncing() {
    let (events, receiver) = mpsc::channel(8);
    let (tables, mut table) = watch::channel(None);
    let dir = tempfile::tempdir().unwrap();
    let standalone = standalone(dir.path(), tables, HeldView::default());
    let task = tokio::spawn(standalone.run(receiver));

    events.send(Event::Changes(objects())).await.unwrap();
    events.send(Event::Synced).await.unwrap();
    let first = table
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone()
        .unwrap();
    assert_eq!(first.revision, 1);
    let record = first.table.records.values().next().unwrap();
    let destinations = first.table.destinations(record, &record.frontends[0]);
    let addresses: Vec<_> = destinations.iter().map(|d| d.address.to_string()).collect();
    assert_eq!(addresses, ["10.244.0.1:8080"]);
    drop(events);
    task.await.unwrap();
}

#[tokio::test]
async fn a_confirmation_before_the_files_are_read_keeps_the_table_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (tables, mut table) = watch::channel(None);
    let (events, receiver) = mpsc::channel(8);
    let first = standalone(dir.path(), tables, HeldView::default());
    let first = tokio::spawn(first.run(receiver));
    for event in [Event::Changes(services(60)), Event::Synced] {
        events.send(event).await.unwrap();
    }
    until(&mut table, 60).await;
    events.send(Event::Changes(emptied(60))).await.unwrap();
    events.send(Event::Changes(objects())).await.unwrap();
    until(&mut table, 61).await;
    drop(events);
    first.await.unwrap();

    // The next run does not come to read them all.
    let (tables, mut table) = watch::channel(None);
    let held = HeldView::default();
    let (events, receiver) = mpsc::channel(8);
    let second = tokio::spawn(standalone(dir.path(), tables, held.clone()).run(receiver));
    let is_held = async {
        while held.confirm().is_none() {
            tokio::task::yield_now().await;
        }
    };
    let wait = tokio::time::timeout(std::time::Duration::from_secs(20), is_held);
    wait.await.expect("in time");
    until(&mut table, 1).await;
    assert!(table.borrow().as_ref().unwrap().is_from_disk);
    drop(events);
    second.await.unwrap();
    let store = Store {
        directory: dir.path().to_owned(),
        cluster: String::new(),
        node: "here".to_owned(),
        pin: ClusterPin::default(),
    };
    assert_eq!(store.read().unwrap().records.len(), 61);
}
