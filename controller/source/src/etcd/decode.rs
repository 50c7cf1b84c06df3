// SPDX-License-Identifier: Apache-2.0

//! The value of a key as an object: pure, by the parsers of files.

use std::sync::Arc;

use portolan_catalog::{FieldProblem, Kind, Object, ObjectChange, ObjectKey, ObjectRef, Reason};
use portolan_director::{
    Already, Director, File, LoadBalancer, Problem, parse, unsupported_from_controller,
    unsupported_in_fleet,
};
use portolan_etcd::Name;

use crate::groups::{LabelledNode, labels_of};
use crate::objects::{self, Scope};

/// An object of the fleet.
#[derive(Debug, Clone, PartialEq)]
pub enum Decoded {
    /// A load balancer.
    LoadBalancer(Arc<LoadBalancer>),
    /// The settings of a host, for its agent alone.
    Director(Box<Director>),
    /// A Node.
    Node(Box<LabelledNode>),
}

/// Reads the value of the key of an object.
///
/// # Errors
/// All that is wrong with it.
pub fn decode(name: &Name, value: &[u8], scope: &Scope) -> Result<Decoded, Vec<FieldProblem>> {
    let text = str::from_utf8(value).map_err(|error| {
        let message = format!("not text: {error}");
        vec![FieldProblem::new("", Reason::Malformed, message)]
    })?;
    match name {
        Name::LoadBalancer { .. } | Name::Director(_) => of_fleet(name, text),
        Name::Node(_) => node(name, text, scope),
    }
}

/// The reference of an object.
pub(super) fn reference(name: &Name, cluster: &Arc<str>) -> ObjectRef {
    let (kind, namespace, name) = match name {
        Name::LoadBalancer { namespace, name } => (Kind::LoadBalancer, namespace.as_str(), name),
        Name::Director(name) => (Kind::Director, "", name),
        Name::Node(name) => (Kind::Node, "", name),
    };
    let key = ObjectKey {
        cluster: Arc::clone(cluster),
        namespace: namespace.into(),
        name: name.as_str().into(),
    };
    ObjectRef { kind, key }
}

fn of_fleet(name: &Name, text: &str) -> Result<Decoded, Vec<FieldProblem>> {
    // A file that ends in .json is JSON.
    let file = File {
        name: "value.json",
        text,
    };
    let generation = parse(&[file], &Already::default())
        .map_err(|problems| problems.into_iter().map(of_field).collect::<Vec<_>>())?;
    let of_other_api = generation.not_ours.first();
    let found = match (
        &generation.load_balancers[..],
        &generation.directors[..],
        of_other_api,
    ) {
        ([balancer], [], None) => Name::LoadBalancer {
            namespace: balancer.name.namespace.clone(),
            name: balancer.name.name.clone(),
        },
        ([], [director], None) => Name::Director(director.name.clone()),
        _ => return Err(vec![other_object(name, of_other_api.map(|it| &*it.kind))]),
    };
    if found != *name {
        return Err(vec![other_name(name, &found)]);
    }
    if let Some(director) = generation.directors.into_iter().next() {
        refused(unsupported_from_controller(&director))?;
        return Ok(Decoded::Director(Box::new(director)));
    }
    let balancer = generation.load_balancers.into_iter().next();
    let balancer = balancer.ok_or_else(|| vec![other_object(name, None)])?;
    refused(unsupported_in_fleet(&balancer))?;
    Ok(Decoded::LoadBalancer(balancer))
}

/// The fields that a fleet does not have, if there are any.
fn refused(fields: Vec<(String, String)>) -> Result<(), Vec<FieldProblem>> {
    let problem = |(field, message)| FieldProblem::new(field, Reason::Malformed, message);
    match fields.is_empty() {
        true => Ok(()),
        false => Err(fields.into_iter().map(problem).collect()),
    }
}

fn node(name: &Name, text: &str, scope: &Scope) -> Result<Decoded, Vec<FieldProblem>> {
    let malformed =
        |field: &str, message| vec![FieldProblem::new(field, Reason::Malformed, message)];
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| malformed("", error.to_string()))?;
    let text = |field| value.get(field).and_then(serde_json::Value::as_str);
    if (text("apiVersion"), text("kind")) != (Some("v1"), Some("Node")) {
        return Err(vec![other_object(name, text("kind"))]);
    }
    let change = objects::convert(Kind::Node, &value, scope).into_change();
    match change {
        Some(ObjectChange::Put { object, problems }) => {
            let expected = reference(name, &scope.cluster);
            let found = object.reference();
            if found != expected {
                let found = Name::Node(found.key.name.to_string());
                return Err(vec![other_name(name, &found)]);
            }
            let Object::Node(node) = object else {
                return Err(vec![other_object(name, None)]);
            };
            Ok(Decoded::Node(Box::new(LabelledNode {
                node,
                problems,
                labels: Arc::new(labels_of(&value)),
            })))
        }
        Some(ObjectChange::Refused { problems, .. }) => Err(problems),
        _ => Err(malformed("metadata.name", "missing".to_owned())),
    }
}

fn other_object(name: &Name, kind: Option<&str>) -> FieldProblem {
    let expected = match name {
        Name::LoadBalancer { .. } => "a LoadBalancer of portolan.dev/v1alpha1",
        Name::Director(_) => "a Director of portolan.dev/v1alpha1",
        Name::Node(_) => "a Node of v1",
    };
    let found = kind.map_or_else(|| "no object".to_owned(), |kind| format!("{kind:?}"));
    let message = format!("{found}: expected {expected}");
    FieldProblem::new("kind", Reason::Malformed, message)
}

fn other_name(name: &Name, found: &Name) -> FieldProblem {
    let message = format!("{found} at the key of {name}: expected the name of the key");
    FieldProblem::new("metadata.name", Reason::Malformed, message)
}

fn of_field(problem: Problem) -> FieldProblem {
    FieldProblem::new(problem.field, Reason::Malformed, problem.message)
}
