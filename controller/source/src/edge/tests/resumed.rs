// SPDX-License-Identifier: Apache-2.0

//! A source that starts again.

use super::*;

impl Centre {
    /// Ends the source and starts the next one.
    async fn again(self) -> Self {
        let Self { holds, task, .. } = self;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        Self::after(holds)
    }
}

#[tokio::test(start_paused = true)]
async fn deletions_that_are_confirmed_before_an_edge_is_back_are_told_at_once() {
    let mut centre = Centre::new();
    let names: Vec<_> = (0..80).map(|number| format!("n-{number}")).collect();
    let mut objects = outbox(names.iter().map(|name| namespace(name)));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    centre.changes().await;
    let mut emptied = outbox([namespace("n-0")]);
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut emptied).await;
    edge.send(&mut emptied).await.unwrap();
    centre.changes().await;

    let mut centre = centre.again().await;
    assert_eq!(centre.holds.confirm().len(), 1);
    let (changes, synced) = centre.changes().await;
    assert_eq!((changes.len(), synced), (79, false));
    assert!(changes.contains(&ObjectChange::Delete(namespace("n-1").reference())));
    assert!(centre.holds.held().is_empty());
}
