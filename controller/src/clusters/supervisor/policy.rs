// SPDX-License-Identifier: Apache-2.0

//! The policy: in files and at an API server on one side, told to the writer on the other.

use std::future::pending;

use portolan_source::kubernetes::Resources;
use tokio::sync::watch;

use super::{PolicyFiles, Supervisor, WriterGone};
use crate::writer::ClusterChange;

/// Waits for news of an API server; for ever without one. `None` if its follower is gone.
pub(super) async fn changed(served: &mut Option<watch::Receiver<Resources>>) -> Option<()> {
    match served {
        Some(served) => served.changed().await.ok(),
        None => pending().await,
    }
}

impl Supervisor {
    /// Takes policy objects from an API server, too. None is in force before all of its kinds were listed.
    pub(crate) fn with_policy(mut self, served: watch::Receiver<Resources>) -> Self {
        self.files.expect_served();
        self.served = Some(served);
        self
    }

    /// Takes the objects that the API server has now.
    pub(super) async fn take_served(&mut self) -> Result<(), WriterGone> {
        let Some(served) = &mut self.served else {
            return Ok(());
        };
        let resources = served.borrow_and_update().clone();
        if let Some(without) = self.files.without_recreated(&resources) {
            self.take_resources(&without).await?;
        }
        self.take_resources(&resources).await?;
        self.tell_problems().await
    }

    async fn take_resources(&mut self, resources: &Resources) -> Result<(), WriterGone> {
        if self.files.take(resources) {
            self.read_tokens().await;
            self.change().await?;
        }
        Ok(())
    }

    /// Reads the policy on a thread that may block; returns whether it changed.
    pub(super) async fn refresh(&mut self) -> bool {
        let mut files = std::mem::replace(&mut self.files, PolicyFiles::new(Vec::new()));
        let refreshed = tokio::task::spawn_blocking(move || {
            let is_news = files.refresh();
            (files, is_news)
        });
        match refreshed.await {
            Ok((files, is_news)) => {
                self.files = files;
                is_news
            }
            // Never cancelled, so it panicked: a bug, not to be hidden.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Sends the policy to the writer, before the clusters that it adds.
    pub(super) async fn tell_policies(&mut self) -> Result<(), WriterGone> {
        let policy = (self.files.objects().clone(), self.files.is_complete());
        self.states.lock().refused = self.files.refused_clusters();
        if self.told.as_ref() == Some(&policy) {
            return Ok(());
        }
        let (objects, is_complete) = policy.clone();
        self.automatic.send_replace(objects.exports_automatically());
        self.told = Some(policy);
        let change = ClusterChange::Policies {
            objects: Box::new(objects),
            is_complete,
        };
        Ok(self.changes.send(change).await?)
    }
}
