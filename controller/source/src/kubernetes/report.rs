// SPDX-License-Identifier: Apache-2.0

//! Kubernetes Events about held deletions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use tokio::time::{sleep, timeout};
use tracing::{debug, info};

use super::events::{CONTROLLER, Told, create, event_about};
use crate::deletions::HeldLoss;
use crate::{HeldDeletions, HeldKey};

/// The least time between two Events.
const PAUSE: Duration = Duration::from_secs(10);
/// The timeout of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The Namespace that the Events are about.
const ABOUT: &str = "kube-system";

/// Writes an Event about the Namespace `kube-system` (in `default`) whenever deletions of a kind
/// begin or cease to be held. Each is an Event of its own: kube's `Recorder` would patch the one of the same reason,
/// which needs another permission and keeps the first note. Ends only with the source.
pub async fn report_held(client: Client, held: Arc<HeldDeletions>, instance: Option<String>) {
    let instance = instance.unwrap_or_else(|| CONTROLLER.to_owned());
    let mut changes = held.subscribe();
    let mut told = Vec::new();
    let mut is_refused = false;
    while changes.changed().await.is_ok() {
        let held = changes.borrow_and_update().clone();
        let kinds: Vec<_> = held.keys().cloned().collect();
        if kinds == told {
            continue;
        }
        told = kinds;
        let event = event(&held, &instance, Timestamp::now());
        let written = timeout(PATIENCE, create(&client, &event)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(kube::Error::Api(status)))
                if status.code == 403 && !std::mem::replace(&mut is_refused, true) =>
            {
                info!(reason = status.message, "no permission to write Events");
            }
            failed => debug!(?failed, "cannot write an Event"),
        }
        sleep(PAUSE).await;
    }
}

fn event(held: &BTreeMap<HeldKey, HeldLoss>, instance: &str, now: Timestamp) -> Event {
    let (type_, reason) = match held.is_empty() {
        false => ("Warning", "DeletionsHeld"),
        true => ("Normal", "DeletionsReleased"),
    };
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Namespace".to_owned()),
        name: Some(ABOUT.to_owned()),
        ..ObjectReference::default()
    };
    let told = Told {
        type_,
        reason,
        action: "Watch",
        note: &note(held),
    };
    let name = format!("{ABOUT}.{:x}", now.as_nanosecond());
    event_about(about, name, &told, instance)
}

fn note(held: &BTreeMap<HeldKey, HeldLoss>) -> String {
    if held.is_empty() {
        return "Deletions are no longer held.".to_owned();
    }
    let kinds = held.iter().map(|((_, kind), held)| match held.lost.ready {
        0 => format!("{} of {} {kind}s", held.lost.objects, held.of.objects),
        ready => format!(
            "{} of {} {kind}s with {ready} of {} ready endpoints",
            held.lost.objects, held.of.objects, held.of.ready
        ),
    });
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    format!(
        "Deletions are held, and the objects stay in force: {kinds}. \
         `portolanctl confirm --deletions` releases the deletions."
    )
}

#[cfg(test)]
mod tests {
    use portolan_catalog::Kind;

    use super::*;
    use crate::deletions::Size;

    #[test]
    fn the_note_lists_held_deletions() {
        let held = |objects, ready| HeldLoss {
            lost: Size { objects, ready },
            of: Size {
                objects: 100,
                ready: 300,
            },
            until: None,
        };
        let held = BTreeMap::from([
            (("".into(), Kind::Service), held(90, 0)),
            (("".into(), Kind::EndpointSlice), held(80, 240)),
        ]);
        let text = note(&held);
        assert!(
            text.contains("90 of 100 Services, 80 of 100 EndpointSlices with 240 of 300"),
            "{text}"
        );
        let released = event(&BTreeMap::new(), "pod-1", Timestamp::UNIX_EPOCH);
        assert_eq!(released.reason.as_deref(), Some("DeletionsReleased"));
        assert_eq!(released.metadata.namespace.as_deref(), Some("default"));
    }
}
