// SPDX-License-Identifier: Apache-2.0

//! One write at an API server.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions,
};
use kube::{Api, Client};
use portolan_mcs::{Action, Target, Write, WriteKind, at};
use portolan_source::objects::FIELD_MANAGER;
use tokio::time::timeout;

/// Time limit of one write.
const PATIENCE: Duration = Duration::from_secs(10);
/// The name under which objects are created: fields of that cannot be taken back.
const CREATOR: &str = "portolan-controller-create";

/// Reason why a write failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// For metrics.
    pub(crate) result: &'static str,
    /// Whether only a person can change it.
    pub(crate) refused: bool,
    pub(crate) message: String,
}

/// Does a write.
///
/// # Returns
/// The UID of a created object.
pub(super) async fn perform(client: &Client, write: &Write) -> Result<Option<String>, Failure> {
    match timeout(PATIENCE, request(client, write)).await {
        Ok(Ok(uid)) => Ok(uid),
        Ok(Err(error)) => Err(failure(&error)),
        Err(_) => Err(Failure {
            result: "error",
            refused: false,
            message: format!("no answer in {PATIENCE:?}"),
        }),
    }
}

pub(crate) fn failure(error: &kube::Error) -> Failure {
    let (result, refused) = match error {
        kube::Error::Api(status) => match status.code {
            401 | 403 => ("forbidden", true),
            404 => ("missing", false),
            409 => ("conflict", false),
            400 | 422 => ("invalid", true),
            _ => ("error", false),
        },
        _ => ("error", false),
    };
    Failure {
        result,
        refused,
        message: error.to_string(),
    }
}

pub(super) fn api(client: &Client, kind: WriteKind, namespace: Option<&str>) -> Api<DynamicObject> {
    let api_version = kind.api_version();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
    };
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn request(client: &Client, write: &Write) -> kube::Result<Option<String>> {
    let Target { kind, name } = &write.target;
    let api = api(client, *kind, Some(&name.namespace));
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    match &write.action {
        Action::Create(object) => {
            let object = serde_json::from_value(object.clone());
            let object: DynamicObject = object.map_err(kube::Error::SerdeError)?;
            let params = PostParams {
                field_manager: Some(CREATOR.to_owned()),
                ..PostParams::default()
            };
            return Ok(api.create(&params, &object).await?.metadata.uid);
        }
        Action::Apply(object) => {
            api.patch(&name.name, &apply, &Patch::Apply(object)).await?;
        }
        Action::ApplyStatus(object) => {
            let object = at(object, &now());
            let patch = Patch::Apply(&object);
            api.patch_status(&name.name, &apply, &patch).await?;
        }
        Action::Delete { uid } => {
            let preconditions = Preconditions {
                uid: Some(uid.to_string()),
                ..Preconditions::default()
            };
            let params = DeleteParams::background().preconditions(preconditions);
            match api.delete(&name.name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => _ = other?,
            }
        }
    }
    Ok(None)
}

/// Now, in whole seconds, as in `metav1.Time`.
fn now() -> String {
    let now = Timestamp::now().as_second();
    let now = Timestamp::from_second(now).unwrap_or(Timestamp::UNIX_EPOCH);
    now.to_string()
}
