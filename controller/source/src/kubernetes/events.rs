// SPDX-License-Identifier: Apache-2.0

//! Kubernetes Events about problems with objects.
//!
//! An Event is named by its contents, so that restarts and other replicas of the controller do not
//! write it again while the API server keeps it. Events are limited per object, per Namespace and in
//! total: a tenant whose objects are broken on purpose gets a few, and takes none from others.

mod limits;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Api, Client};
use portolan_catalog::{Kind, ObjectRef, Reason};
use portolan_director::document::{API_GROUP, GROUP_VERSION};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tracing::{debug, info};

use super::kinds::Watchable;
use crate::ObjectProblem;
use crate::objects::{
    ClusterProperty, EndpointSlice, Namespace, Node, Pod, Service, ServiceExport, ServiceImport,
};
use limits::Limits;

/// Problems that wait for their Event. More of them get none.
const WAITING: usize = 256;
/// The timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The name of the controller in Events, and of an instance without one of its own.
pub(super) const CONTROLLER: &str = "portolan-controller";
/// The API's limit of an instance's name, in bytes.
const MAX_INSTANCE: usize = 128;
/// The API's limit of a note, in bytes.
const MAX_NOTE: usize = 1024;
/// The part of an object's name in its Events' names, in bytes.
const MAX_NAME: usize = 200;

/// A channel for [`report_problems`].
#[must_use]
pub fn problem_channel() -> (mpsc::Sender<ObjectProblem>, mpsc::Receiver<ObjectProblem>) {
    mpsc::channel(WAITING)
}

/// Writes an Event about the object of each problem, as far as the limits allow.
///
/// Without the permission to create Events it logs that once, and writes no more. Never ends.
pub async fn report_problems(
    client: Client,
    mut problems: mpsc::Receiver<ObjectProblem>,
    instance: Option<String>,
) {
    let instance = instance.unwrap_or_else(|| CONTROLLER.to_owned());
    let mut limits = Limits::default();
    while let Some(found) = problems.recv().await {
        if !limits.allow(&found.object, Instant::now().into_std()) {
            continue;
        }
        let object = found.object.clone();
        let written = timeout(TIMEOUT, write(&client, found, &instance)).await;
        match written {
            Ok(Ok(())) => {}
            // Also the answer for a full quota, or a Namespace that is being deleted.
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                if !may_write(&client).await {
                    info!(reason = status.message, "no permission to write Events");
                    break;
                }
                debug!(%object, reason = status.message, "cannot write an Event");
            }
            failed => debug!(%object, ?failed, "cannot write an Event"),
        }
    }
    problems.close();
    std::future::pending().await
}

async fn write(client: &Client, found: ObjectProblem, instance: &str) -> Result<(), kube::Error> {
    let Some(uid) = uid(client, &found.object).await? else {
        return Ok(());
    };
    create(client, &event(&found, uid, instance)).await
}

/// The UID of an object, by which `kubectl describe` finds its Events; `None` if it is gone.
async fn uid(client: &Client, object: &ObjectRef) -> Result<Option<String>, kube::Error> {
    let resource = resource(object.kind);
    let key = &object.key;
    let objects: Api<DynamicObject> = match &*key.namespace {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    // A list, which the controller's permissions include.
    let named = ListParams::default().fields(&format!("metadata.name={}", key.name));
    let found = objects
        .list_metadata(&named)
        .await?
        .items
        .into_iter()
        .next();
    Ok(found.and_then(|found| found.metadata.uid))
}

fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::Service => resource_of::<Service>(),
        Kind::EndpointSlice => resource_of::<EndpointSlice>(),
        Kind::Node => resource_of::<Node>(),
        Kind::Pod => resource_of::<Pod>(),
        Kind::Namespace => resource_of::<Namespace>(),
        // An API server has none yet.
        Kind::LoadBalancer => named(kind, API_GROUP, GROUP_VERSION, "loadbalancers"),
        Kind::Director => named(kind, API_GROUP, GROUP_VERSION, "directors"),
        // No problem is reported of it as of an object of a source.
        Kind::Policy => named(kind, API_GROUP, GROUP_VERSION, "clusters"),
        Kind::ServiceExport => resource_of::<ServiceExport>(),
        Kind::ServiceImport => resource_of::<ServiceImport>(),
        Kind::ClusterProperty => resource_of::<ClusterProperty>(),
    }
}

/// The resource as it is watched.
fn resource_of<W: Watchable>() -> ApiResource {
    named(W::KIND, W::GROUP, W::VERSION, W::PLURAL)
}

fn named(kind: Kind, group: &str, version: &str, plural: &str) -> ApiResource {
    let api_version = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_string(),
        plural: plural.to_owned(),
    }
}

/// Returns `true` if Events may be created in all Namespaces.
async fn may_write(client: &Client) -> bool {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some("create".to_owned()),
                group: Some("events.k8s.io".to_owned()),
                resource: Some("events".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let params = PostParams::default();
    let answer = timeout(TIMEOUT, reviews.create(&params, &review)).await;
    match answer {
        Ok(Ok(review)) => review.status.is_some_and(|status| status.allowed),
        _ => false,
    }
}

fn event(found: &ObjectProblem, uid: String, instance: &str) -> Event {
    let ObjectProblem { object, problem } = found;
    let resource = resource(object.kind);
    let key = &object.key;
    let mut hasher = DefaultHasher::new();
    (&uid, problem).hash(&mut hasher);
    let name = format!(
        "{}.{:016x}",
        truncated(&key.name, MAX_NAME),
        hasher.finish()
    );
    let regarding = ObjectReference {
        api_version: Some(resource.api_version),
        kind: Some(resource.kind),
        name: Some(key.name.to_string()),
        namespace: Some(key.namespace.to_string()).filter(|name| !name.is_empty()),
        uid: Some(uid),
        ..ObjectReference::default()
    };
    let told = Told {
        type_: "Warning",
        reason: reason(problem.reason),
        action: "Program",
        note: &problem.to_string(),
    };
    event_about(regarding, name, &told, instance)
}

/// Type, reason, action and note of an Event.
pub(super) struct Told<'a> {
    /// `Normal` or `Warning`.
    pub(super) type_: &'static str,
    pub(super) reason: &'static str,
    pub(super) action: &'static str,
    pub(super) note: &'a str,
}

/// An Event in the Namespace of its object, or in `default`.
pub(super) fn event_about(
    regarding: ObjectReference,
    name: String,
    told: &Told<'_>,
    instance: &str,
) -> Event {
    let namespace = regarding.namespace.as_deref().unwrap_or("default");
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        type_: Some(told.type_.to_owned()),
        reason: Some(told.reason.to_owned()),
        action: Some(told.action.to_owned()),
        note: Some(truncated(told.note, MAX_NOTE)),
        regarding: Some(regarding),
        reporting_controller: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(truncated(instance, MAX_INSTANCE)),
        ..Event::default()
    }
}

/// Creates an Event. One of this name says the same.
pub(super) async fn create(client: &Client, event: &Event) -> Result<(), kube::Error> {
    let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    match events.create(&PostParams::default(), event).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => created.map(drop),
    }
}

fn reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Malformed => "Malformed",
        Reason::InvalidValue => "InvalidValue",
        Reason::WrongFamily => "WrongFamily",
        Reason::Conflict => "Conflict",
        Reason::TooMany => "TooMany",
        Reason::AddressOutsideNetwork => "AddressOutsideNetwork",
        Reason::NodeAddress => "NodeAddress",
        Reason::Unsupported => "Unsupported",
    }
}

/// The first characters of a text, as many as fit into so many bytes.
fn truncated(text: &str, bytes: usize) -> String {
    text[..text.floor_char_boundary(bytes)].to_owned()
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{FieldProblem, ObjectKey};

    use super::*;

    fn problem(kind: Kind, namespace: &str, message: &str) -> ObjectProblem {
        let key = ObjectKey {
            cluster: "".into(),
            namespace: namespace.into(),
            name: "web".into(),
        };
        ObjectProblem {
            object: ObjectRef { kind, key },
            problem: FieldProblem::new("spec.externalIPs[0]", Reason::Conflict, message),
        }
    }

    #[test]
    fn an_event_names_object_field_and_reason() {
        let found = problem(Kind::EndpointSlice, "prod", "taken by Service default/a");
        let event = event(&found, "u-1".to_owned(), "pod-1");
        let regarding = event.regarding.unwrap();
        assert_eq!(
            regarding.api_version.as_deref(),
            Some("discovery.k8s.io/v1")
        );
        assert_eq!(regarding.uid.as_deref(), Some("u-1"));
        assert_eq!(event.metadata.namespace.as_deref(), Some("prod"));
        assert_eq!(event.reason.as_deref(), Some("Conflict"));
        let note = event.note.unwrap();
        assert_eq!(note, "spec.externalIPs[0]: taken by Service default/a");
    }

    #[test]
    fn events_are_named_by_their_contents() {
        let name = |found: &ObjectProblem, uid: &str| {
            event(found, uid.to_owned(), "x").metadata.name.unwrap()
        };
        let found = problem(Kind::Service, "prod", "a");
        assert_eq!(name(&found, "u-1"), name(&found, "u-1"));
        assert_ne!(name(&found, "u-1"), name(&found, "u-2"));
        let other = problem(Kind::Service, "prod", "b");
        assert_ne!(name(&found, "u-1"), name(&other, "u-1"));
    }

    #[test]
    fn long_notes_are_cut_between_characters_and_nodes_report_in_default() {
        let found = problem(Kind::Node, "", &"ä".repeat(MAX_NOTE));
        let event = event(&found, "u".to_owned(), &"i".repeat(200));
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        let note = event.note.unwrap();
        assert!(note.len() <= MAX_NOTE && note.ends_with('ä'));
        assert_eq!(event.reporting_instance.unwrap().len(), 128);
    }
}
