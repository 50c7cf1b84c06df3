// SPDX-License-Identifier: Apache-2.0

//! Reads policy objects: those of files, and those of an API server.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use portolan_director::read::{Format, Node, check, documents};
use portolan_director::{File, NotOurs, Position, strict_schema};
use serde::de::DeserializeOwned;

use crate::object::Meta;
use crate::objects::{Object, ObjectFault};
use crate::spec::{
    API_GROUP, API_VERSION, ClusterSetSpec, ClusterSpec, Document, ExportPolicySpec,
    ImportPolicySpec, TrafficPolicySpec,
};
use crate::{
    Cluster, ClusterSet, ExportPolicy, Fault, ImportPolicy, Kind, ObjectName, Objects, PolicyError,
    Served, TrafficPolicy,
};

/// Something that is wrong with an object: its text is `FILE:LINE:COLUMN: FIELD: what is wrong` in a file, and
/// `KIND NAME: FIELD: what is wrong` in an API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// The file's name; empty for an object of an API server.
    pub file: String,
    /// The place in the file.
    pub at: Position,
    /// The object; none if the document has no proper name, or is no YAML.
    pub object: Option<ObjectName>,
    /// The fault.
    pub fault: Fault,
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(object) = self.object.as_ref().filter(|_| self.file.is_empty()) {
            return write!(f, "{object}: {}", self.fault);
        }
        let problem = portolan_director::Problem {
            file: self.file.clone(),
            at: self.at,
            field: self.fault.field.clone(),
            message: self.fault.error.to_string(),
        };
        problem.fmt(f)
    }
}

/// Content of files, and of an API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The good objects.
    pub objects: Objects,
    /// Problems, in the order of files and lines; warnings are among them.
    pub problems: Vec<FileProblem>,
    /// Documents of other APIs.
    pub not_ours: Vec<NotOurs>,
    /// The objects of the API server.
    served: BTreeSet<ObjectName>,
}

impl Reading {
    /// The objects that are there and not in force. If they were before, their last good versions
    /// stay ([`Objects::or_last_good`]).
    #[must_use]
    pub fn refused(&self) -> Vec<ObjectName> {
        let errors = self.problems.iter();
        let errors = errors.filter(|problem| !problem.fault.error.reason().is_warning());
        let mut names: Vec<ObjectName> = errors
            .filter_map(|problem| problem.object.clone())
            .filter(|name| self.objects.get(name).is_none())
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// The objects that are in force from now on, after `last`, which [`read_after`] was given too: the
    /// good ones, and in place of bad ones their last good versions. If there is a bad one that was not
    /// in force before, or a text that could not even be told to be an object, all that is missing
    /// stays: it may be what was meant. Faults come from new objects that would take something from
    /// those in force, and from Clusters whose id has changed.
    #[must_use]
    pub fn in_force(self, last: &Objects) -> (Objects, Vec<ObjectFault>) {
        self.in_force_without(last, &BTreeSet::new())
    }

    /// As [`in_force`](Self::in_force), after objects of an API server were deleted: those do not stay. An object that
    /// the API server has is what its name says, so a bad one that is new keeps no other one.
    #[must_use]
    pub fn in_force_without(
        self,
        last: &Objects,
        deleted: &BTreeSet<ObjectName>,
    ) -> (Objects, Vec<ObjectFault>) {
        let mut kept = self.refused();
        let is_new = |name: &ObjectName| last.get(name).is_none() && !self.served.contains(name);
        if !self.is_incomplete() && !kept.iter().any(is_new) {
            let (objects, faults) = self.objects.clone().or_last_good(&kept, last);
            // A new one that is left out is a bad one as well.
            if !faults.iter().any(|found| is_new(&found.object)) {
                return (objects, faults);
            }
        }
        let names = last.names().into_iter();
        kept.extend(names.filter(|name| !deleted.contains(name)));
        self.objects.or_last_good(&kept, last)
    }

    /// Returns `true` if some text could not even be told to be an object.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        let mut errors = self.problems.iter();
        errors.any(|problem| problem.object.is_none())
    }
}

/// Reads files of policy objects. A bad document loses no other one.
#[must_use]
pub fn read(files: &[File<'_>]) -> Reading {
    read_after(files, &Objects::default())
}

/// As [`read`], of files whose objects in force are `last` so far. Of two objects that cannot be in force together the
/// one of `last` is good, in its new version, and the other one has the problem. A Cluster whose id has changed stays
/// as it was.
#[must_use]
pub fn read_after(files: &[File<'_>], last: &Objects) -> Reading {
    read_all(files, &[], last)
}

/// As [`read_after`], of files and of an API server's objects. Of two objects with one name that of the API server is
/// good.
#[must_use]
pub fn read_all(files: &[File<'_>], served: &[Served], last: &Objects) -> Reading {
    let mut reader = Reader::default();
    for object in served {
        reader.served(object);
    }
    for file in files {
        for document in documents(file.text, Format::of(file.name)) {
            match document {
                Ok(document) => reader.document(file.name, document),
                Err(error) => reader.problems.push(FileProblem {
                    file: file.name.to_owned(),
                    at: error.at,
                    object: None,
                    fault: Fault {
                        field: String::new(),
                        error: PolicyError::Structure(error.message),
                    },
                }),
            }
        }
    }
    let order = |name: &str| files.iter().position(|file| file.name == name);
    let mut reading = reader.finish(last);
    reading
        .problems
        .sort_by_cached_key(|problem| (order(&problem.file), problem.clone()));
    reading
}

/// An object and where it stands.
struct Placed {
    object: Object,
    file: String,
    document: Node,
}

#[derive(Default)]
struct Reader {
    placed: Vec<Placed>,
    problems: Vec<FileProblem>,
    not_ours: Vec<NotOurs>,
    served: BTreeSet<ObjectName>,
}

impl Reader {
    fn served(&mut self, given: &Served) {
        self.served.insert(given.name.clone());
        let document = given.document();
        match object(given.name.kind, &document, given.created) {
            Ok(object) => self.placed.push(Placed {
                object,
                file: String::new(),
                document,
            }),
            Err(faults) => {
                for PlacedFault { fault, .. } in faults {
                    self.problem("", &document, Some(given.name.clone()), fault);
                }
            }
        }
    }

    fn document(&mut self, file: &str, document: Node) {
        let text = |field| document.get(field).and_then(Node::text);
        let (version, kind) = (text("apiVersion"), text("kind"));
        // Load balancers and directors stand in the same API group, and have readers of their own.
        let is_other = version != Some(API_VERSION) && !version.is_none_or(is_of_group)
            || matches!(kind, Some("LoadBalancer" | "Director"));
        if is_other {
            self.not_ours.push(NotOurs {
                file: file.to_owned(),
                at: document.at,
                api_version: version.unwrap_or_default().to_owned(),
                kind: kind.unwrap_or_default().to_owned(),
            });
            return;
        }
        let wrong = |expected: &str, found: Option<&str>| {
            let found = found.map_or_else(|| String::from("missing"), |text| format!("{text:?}"));
            PolicyError::Structure(format!("{found}: expected {expected}"))
        };
        let kinds = "ClusterSet, Cluster, ExportPolicy, ImportPolicy or TrafficPolicy";
        let (field, error) = if version != Some(API_VERSION) {
            ("apiVersion", wrong(API_VERSION, version))
        } else if let Some(kind) = kind.and_then(Kind::named) {
            self.of_kind(kind, file, document);
            return;
        } else {
            ("kind", wrong(kinds, kind))
        };
        let fault = Fault {
            field: field.to_owned(),
            error,
        };
        self.problem(file, &document, None, fault);
    }

    fn of_kind(&mut self, kind: Kind, file: &str, document: Node) {
        let metadata = document.get("metadata");
        let name = metadata.and_then(|metadata| metadata.get("name")?.text());
        let name = name.map(|name| ObjectName::new(kind, name));
        let object = object(kind, &document, None);
        // What no object can be named is no name: it may be any object that is meant.
        let is_named = object
            .as_ref()
            .err()
            .is_none_or(|faults| faults.iter().all(|one| !is_of_name(&one.fault.field)));
        let name = name.filter(|_| is_named);
        match object {
            Ok(object) => self.placed.push(Placed {
                object,
                file: file.to_owned(),
                document,
            }),
            Err(faults) => {
                for fault in faults {
                    self.problem(file, &document, name.clone(), fault.fault);
                    let at = fault.at;
                    if let (Some(at), Some(last)) = (at, self.problems.last_mut()) {
                        last.at = at;
                    }
                }
            }
        }
    }

    fn problem(&mut self, file: &str, document: &Node, object: Option<ObjectName>, fault: Fault) {
        self.problems.push(FileProblem {
            file: file.to_owned(),
            at: document.locate(&fault.field),
            object,
            fault,
        });
    }

    fn finish(mut self, last: &Objects) -> Reading {
        let objects = self.placed.iter().map(|placed| placed.object.clone());
        let (objects, faults) = Objects::together(objects.collect(), last);
        let warnings = objects.unknown_clusters();
        for ObjectFault { object, fault } in faults.into_iter().chain(warnings) {
            // Of two with the same name the second is meant: the first one is good.
            let mut placed = self.placed.iter().rev();
            let place = placed.find(|placed| placed.object.name() == object);
            let (file, at) = place.map_or_else(Default::default, |placed| {
                (placed.file.clone(), placed.document.locate(&fault.field))
            });
            self.problems.push(FileProblem {
                file,
                at,
                object: Some(object),
                fault,
            });
        }
        Reading {
            objects,
            problems: self.problems,
            not_ours: self.not_ours,
            served: self.served,
        }
    }
}

/// Returns `true` for the API versions of our group.
fn is_of_group(version: &str) -> bool {
    let group = version.split_once('/').map(|(group, _)| group);
    group == Some(API_GROUP)
}

/// Returns `true` if a field is the name of an object, or has it.
fn is_of_name(field: &str) -> bool {
    field == "metadata" || field == "metadata.name"
}

/// A fault, and its place where that is not the field's.
struct PlacedFault {
    at: Option<Position>,
    fault: Fault,
}

/// Schemas of objects, made once.
macro_rules! schemas {
    ($($name:ident: $spec:ty),* $(,)?) => {
        $(static $name: LazyLock<serde_json::Value> =
            LazyLock::new(strict_schema::<Document<$spec>>);)*
    };
}

schemas! {
    CLUSTER_SET: ClusterSetSpec,
    CLUSTER: ClusterSpec,
    EXPORT_POLICY: ExportPolicySpec,
    IMPORT_POLICY: ImportPolicySpec,
    TRAFFIC_POLICY: TrafficPolicySpec,
}

fn object(kind: Kind, document: &Node, created: Option<i64>) -> Result<Object, Vec<PlacedFault>> {
    let mut read = match kind {
        Kind::ClusterSet => typed(document, &CLUSTER_SET, |meta, spec: ClusterSetSpec| {
            ClusterSet::new(meta, &spec).map(Object::ClusterSet)
        }),
        Kind::Cluster => typed(document, &CLUSTER, |meta, spec: ClusterSpec| {
            Cluster::new(meta, &spec).map(Object::Cluster)
        }),
        Kind::ExportPolicy => typed(document, &EXPORT_POLICY, |meta, spec: ExportPolicySpec| {
            ExportPolicy::new(meta, &spec).map(Object::ExportPolicy)
        }),
        Kind::ImportPolicy => typed(document, &IMPORT_POLICY, |meta, spec: ImportPolicySpec| {
            ImportPolicy::new(meta, &spec).map(Object::ImportPolicy)
        }),
        Kind::TrafficPolicy => typed(
            document,
            &TRAFFIC_POLICY,
            |meta, spec: TrafficPolicySpec| {
                TrafficPolicy::new(meta, &spec).map(Object::TrafficPolicy)
            },
        ),
    }?;
    read.meta_mut().created = created;
    Ok(read)
}

fn typed<S: DeserializeOwned>(
    document: &Node,
    schema: &serde_json::Value,
    convert: impl FnOnce(Meta, S) -> Result<Object, Vec<Fault>>,
) -> Result<Object, Vec<PlacedFault>> {
    let misfits = check(schema, document);
    if !misfits.is_empty() {
        let faults = misfits.into_iter().map(|misfit| PlacedFault {
            at: Some(misfit.at),
            fault: Fault {
                field: misfit.field,
                error: PolicyError::Structure(misfit.message),
            },
        });
        return Err(faults.collect());
    }
    let typed: Result<Document<S>, _> = serde_json::from_value(document.to_json());
    let document = typed.map_err(|error| {
        vec![PlacedFault {
            at: None,
            fault: Fault {
                field: String::new(),
                error: PolicyError::Structure(error.to_string()),
            },
        }]
    })?;
    let meta = Meta {
        name: document.metadata.name,
        created: None,
        labels: document.metadata.labels,
    };
    convert(meta, document.spec).map_err(|faults| {
        faults
            .into_iter()
            .map(|fault| PlacedFault { at: None, fault })
            .collect()
    })
}
