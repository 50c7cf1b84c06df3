// SPDX-License-Identifier: Apache-2.0

//! Reads files of policy objects.

use portolan_director::read::{Format, Node, check, documents};
use portolan_director::{File, NotOurs, Position, strict_schema};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use crate::object::Meta;
use crate::objects::{Object, ObjectFault};
use crate::spec::{
    API_VERSION, ClusterSetSpec, ClusterSpec, Document, ExportPolicySpec, ImportPolicySpec,
    TrafficPolicySpec,
};
use crate::{
    Cluster, ClusterSet, ExportPolicy, Fault, ImportPolicy, Kind, ObjectName, Objects, PolicyError,
    TrafficPolicy,
};

/// Something that is wrong with a file: its text is `FILE:LINE:COLUMN: FIELD: what is wrong`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// The file's name.
    pub file: String,
    /// The place in the file.
    pub at: Position,
    /// The object; none if the document has no name, or is no YAML.
    pub object: Option<ObjectName>,
    /// What is wrong with it.
    pub fault: Fault,
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let problem = portolan_director::Problem {
            file: self.file.clone(),
            at: self.at,
            field: self.fault.field.clone(),
            message: self.fault.error.to_string(),
        };
        problem.fmt(f)
    }
}

/// What files hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The good objects.
    pub objects: Objects,
    /// What is wrong, in the order of files and lines; warnings are among them.
    pub problems: Vec<FileProblem>,
    /// Documents of other APIs.
    pub not_ours: Vec<NotOurs>,
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

    /// Whether some text could not even be told to be an object. Nothing may be deleted then because
    /// it is missing: it may be what the text was to be.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        let mut errors = self.problems.iter();
        errors.any(|problem| problem.object.is_none())
    }
}

/// Reads files of policy objects. A bad document loses no other one.
#[must_use]
pub fn read(files: &[File<'_>]) -> Reading {
    let mut reader = Reader::default();
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
    let mut reading = reader.finish();
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
}

impl Reader {
    fn document(&mut self, file: &str, document: Node) {
        let text = |field| document.get(field).and_then(Node::text);
        let (version, kind) = (text("apiVersion"), text("kind"));
        // Load balancers and directors stand in the same API group, and have readers of their own.
        let is_other = version != Some(API_VERSION)
            && !version.is_none_or(|version| version.starts_with("portolan.dev/"))
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
        match object(kind, &document) {
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

    fn finish(mut self) -> Reading {
        let objects = self.placed.iter().map(|placed| placed.object.clone());
        let (objects, faults) = Objects::together(objects.collect());
        let warnings = objects.unknown_clusters();
        for ObjectFault { object, fault } in faults.into_iter().chain(warnings) {
            // Of two with the same name the second is meant: the first one is in force.
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
        }
    }
}

/// A fault, and its place where that is not the field's.
struct PlacedFault {
    at: Option<Position>,
    fault: Fault,
}

fn object(kind: Kind, document: &Node) -> Result<Object, Vec<PlacedFault>> {
    match kind {
        Kind::ClusterSet => typed(document, |meta, spec: ClusterSetSpec| {
            ClusterSet::new(meta, &spec).map(Object::ClusterSet)
        }),
        Kind::Cluster => typed(document, |meta, spec: ClusterSpec| {
            Cluster::new(meta, &spec).map(Object::Cluster)
        }),
        Kind::ExportPolicy => typed(document, |meta, spec: ExportPolicySpec| {
            ExportPolicy::new(meta, &spec).map(Object::ExportPolicy)
        }),
        Kind::ImportPolicy => typed(document, |meta, spec: ImportPolicySpec| {
            ImportPolicy::new(meta, &spec).map(Object::ImportPolicy)
        }),
        Kind::TrafficPolicy => typed(document, |meta, spec: TrafficPolicySpec| {
            TrafficPolicy::new(meta, &spec).map(Object::TrafficPolicy)
        }),
    }
}

fn typed<S: DeserializeOwned + JsonSchema>(
    document: &Node,
    convert: impl FnOnce(Meta, S) -> Result<Object, Vec<Fault>>,
) -> Result<Object, Vec<PlacedFault>> {
    let misfits = check(&strict_schema::<Document<S>>(), document);
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
