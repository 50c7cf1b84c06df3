// SPDX-License-Identifier: Apache-2.0

//! The contents of one file: objects and problems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use portolan_catalog::{FieldProblem, Kind, ObjectRef, Reason, ServiceFacts};
use portolan_director::is_ours;
use serde_json::Value;
use tracing::warn;

use super::balancers;
use super::document::{self, Document};
use super::identify::identify;
use super::problem::{FileProblem, Found};
use super::syntax::{self, Located, SyntaxError};
use crate::groups::labels_of;
use crate::objects::{self, Converted, Names, Scope};

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Its objects, each as its first mention has it.
    pub(super) entries: BTreeMap<ObjectRef, FileEntry>,
    /// All that is wrong.
    pub(super) problems: Vec<Found>,
    /// Whether an unreadable part may be any object: the file's former objects may still be in it.
    pub(super) torn: bool,
    /// Whether it has objects of a director, which are read with those of all files; see `Balancers`.
    pub(super) has_directors: bool,
}

/// One object of a file.
#[derive(Debug, Clone)]
pub(super) struct FileEntry {
    /// The line where its document starts.
    pub(super) line: u64,
    /// The path that leads to it in its document: empty, or an item of a list.
    pub(super) path: String,
    /// Whether it is from an earlier reading, since it may still be in the file.
    pub(super) is_carried: bool,
    /// The converted object, which always has a name.
    pub(super) converted: Arc<Converted>,
    /// The object's records input, if DNS is on.
    pub(super) names: Arc<Names>,
    /// Facts that are read of objects of its kind alone.
    pub(super) more: More,
}

/// Facts that are read of objects of one kind alone.
#[derive(Debug, Clone, Default)]
pub(super) struct More {
    /// Facts that an export needs of a Service, if Services are shared with other clusters.
    pub(super) facts: Option<Arc<ServiceFacts>>,
    /// The labels of a Node.
    pub(super) labels: Arc<BTreeMap<String, String>>,
}

/// Parses a file; with `names`, also objects that only DNS needs.
pub(super) fn parse(file: &Path, text: &str, scope: &Scope, names: bool) -> Contents {
    let mut parser = Parser {
        file,
        scope,
        names,
        contents: Contents::default(),
        ignored: BTreeSet::new(),
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let is_json = file.extension().is_some_and(|name| name == "json");
    let documents = if is_json {
        vec![Document::whole(text)]
    } else {
        document::split(text)
    };
    let last = documents.len();
    for (number, document) in (1..).zip(documents) {
        if !is_json && balancers::is_document(document.text) {
            parser.contents.has_directors = true;
            continue;
        }
        let place = Place {
            located: &Located::new(document),
            path: "",
        };
        let parsed = if is_json {
            syntax::json(text)
        } else {
            syntax::yaml(document.text)
        };
        match parsed {
            Ok(value) => parser.object(place, &value, None),
            Err(error) => parser.broken(place, error, number == last),
        }
    }
    parser.contents
}

/// Where in the file an object is.
#[derive(Clone, Copy)]
struct Place<'t> {
    located: &'t Located<'t>,
    path: &'t str,
}

impl Place<'_> {
    fn field(&self, field: &str) -> String {
        let dot = if self.path.is_empty() || field.is_empty() {
            ""
        } else {
            "."
        };
        format!("{}{dot}{field}", self.path)
    }
}

struct Parser<'t> {
    file: &'t Path,
    scope: &'t Scope,
    names: bool,
    contents: Contents,
    /// Ignored kinds that were reported.
    ignored: BTreeSet<String>,
}

impl Parser<'_> {
    /// A document that is no YAML. If it is the last one, the file may have been cut short.
    fn broken(&mut self, place: Place<'_>, error: SyntaxError, is_last: bool) {
        let object = identify(place.located.document.text, &self.scope.cluster);
        self.contents.torn |= is_last;
        let position = place.located.in_file(error.position);
        let problem = FileProblem::new(self.file, position, String::new(), error.message);
        self.refuse(
            place,
            object,
            vec![(problem, Reason::Malformed)],
            Names::Refused,
        );
    }

    /// One object, or a list of them, which lends its items the apiVersion and kind in `lent`.
    fn object(&mut self, place: Place<'_>, value: &Value, lent: Option<(&str, &str)>) {
        let text = |field| value.get(field).and_then(Value::as_str);
        let (lent_version, lent_kind) = lent.unzip();
        let version = text("apiVersion").or(lent_version).unwrap_or_default();
        let Some(kind) = text("kind").or(lent_kind) else {
            let message = "missing: expected an object with apiVersion and kind";
            let problem = FieldProblem::new("kind", Reason::Malformed, message);
            let problems = self.place(place, vec![problem]);
            self.refuse(place, None, problems, Names::Refused);
            return;
        };
        if let Some(of) = kind.strip_suffix("List")
            && !is_ours(Some(version), Some(of))
        {
            let items = value.get("items").and_then(Value::as_array);
            let lent = (!of.is_empty()).then_some((version, of));
            for (index, item) in items.into_iter().flatten().enumerate() {
                let path = place.field(&format!("items[{index}]"));
                let place = Place {
                    path: &path,
                    ..place
                };
                self.object(place, item, lent);
            }
            return;
        }
        if is_ours(Some(version), Some(kind)) {
            self.contents.has_directors = true;
            return;
        }
        match kind {
            "Service" => self.object_of_kind(place, value, Kind::Service, version),
            "EndpointSlice" => self.object_of_kind(place, value, Kind::EndpointSlice, version),
            "Node" => self.object_of_kind(place, value, Kind::Node, version),
            "Pod" if self.names || objects::has_weight(value) => {
                self.object_of_kind(place, value, Kind::Pod, version);
            }
            "Namespace" if self.names || self.scope.shares => {
                self.object_of_kind(place, value, Kind::Namespace, version);
            }
            "ServiceExport" => self.object_of_kind(place, value, Kind::ServiceExport, version),
            "ClusterProperty" if self.scope.shares => {
                self.object_of_kind(place, value, Kind::ClusterProperty, version);
            }
            other => {
                if self.ignored.insert(other.to_owned()) {
                    warn!(file = %self.file.display(), kind = other, "kind is not read; ignored");
                }
            }
        }
    }

    fn object_of_kind(&mut self, place: Place<'_>, value: &Value, kind: Kind, version: &str) {
        let mut names = Names::Refused;
        let mut more = More::default();
        let converted = if objects::is_version(kind, version) {
            if self.names {
                names = objects::names(kind, value);
            }
            if self.scope.shares && kind == Kind::Service {
                more.facts = objects::facts(value, self.scope);
            }
            if kind == Kind::Node {
                more.labels = Arc::new(labels_of(value));
            }
            objects::convert(kind, value, self.scope)
        } else {
            let expected = objects::api_version(kind);
            let message = format!("{version:?} is not read: expected {expected}");
            Converted::Refused {
                object: objects::reference(kind, value, &self.scope.cluster),
                problems: vec![FieldProblem::new("apiVersion", Reason::Malformed, message)],
            }
        };
        match converted {
            Converted::NotOurs(_) => {
                self.note_names(place, &names);
                self.insert(place, converted, names, more);
            }
            Converted::Refused { object, problems } => {
                let problems = self.place(place, problems);
                self.refuse(place, object, problems, names);
            }
            Converted::Put { object, problems } => {
                let problems = self.place(place, problems);
                let problems = self.note(Some(&object.reference()), problems);
                self.insert(place, Converted::Put { object, problems }, names, more);
            }
        }
    }

    /// Finds where in the file problems of an object are.
    fn place(&self, place: Place<'_>, problems: Vec<FieldProblem>) -> Vec<(FileProblem, Reason)> {
        let placed = problems.into_iter().map(|problem| {
            let field = place.field(&problem.field);
            let position = place.located.find(&field);
            let mut placed = FileProblem::new(self.file, position, field, problem.message);
            if position.is_none() {
                placed.line = Some(place.located.document.first_line);
            }
            (placed, problem.reason)
        });
        placed.collect()
    }

    /// Refuses an unreadable object. An unidentified one could be any former object of the file.
    fn refuse(
        &mut self,
        place: Place<'_>,
        object: Option<ObjectRef>,
        problems: Vec<(FileProblem, Reason)>,
        names: Names,
    ) {
        self.contents.torn |= object.is_none();
        let problems = self.note(object.as_ref(), problems);
        if object.is_some() {
            let converted = Converted::Refused { object, problems };
            self.insert(place, converted, names, More::default());
        }
    }

    /// Notes problems of the file, and makes problems of the object of them.
    fn note(
        &mut self,
        object: Option<&ObjectRef>,
        problems: Vec<(FileProblem, Reason)>,
    ) -> Vec<FieldProblem> {
        let noted = problems.into_iter().map(|(problem, reason)| {
            let of_object = problem.of_object(reason);
            self.contents.problems.push(Found {
                object: object.cloned(),
                problem,
            });
            of_object
        });
        noted.collect()
    }

    /// Reports problems with an object that only DNS has as problems of the file, since the catalog
    /// does not have it.
    fn note_names(&mut self, place: Place<'_>, names: &Names) {
        let Names::Put { problems, .. } = names else {
            return;
        };
        let problems = self.place(place, problems.clone());
        self.note(None, problems);
    }

    /// The first mention counts.
    fn insert(&mut self, place: Place<'_>, converted: Converted, names: Names, more: More) {
        let Some(object) = converted.reference() else {
            return;
        };
        let entry = FileEntry {
            line: place.located.document.first_line,
            path: place.path.to_owned(),
            is_carried: false,
            converted: Arc::new(converted),
            names: Arc::new(names),
            more,
        };
        let first = match self.contents.entries.entry(object.clone()) {
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(entry);
                return;
            }
            std::collections::btree_map::Entry::Occupied(first) => first.into_mut(),
        };
        let found = super::merge::conflict(&object, (self.file, first), (self.file, &entry));
        first.converted = super::merge::with_conflict(first, &found);
        self.contents.problems.push(found);
    }
}
