// SPDX-License-Identifier: Apache-2.0

//! All objects of all files, taken together or not at all.

use std::collections::HashMap;
use std::sync::Arc;

use crate::balancer::LoadBalancer;
use crate::convert::{self, Finding, Findings};
use crate::director::Director;
use crate::document::API_VERSION;
use crate::problem::{Position, Problem};
use crate::read::{Format, Node, Path, Piece, Value, check, split, without};
use crate::rules::{Already, Placed, together};
use crate::schema;

/// A file: its name, which problems begin with, and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File<'t> {
    /// The name; JSON if it ends in `.json`, else YAML.
    pub name: &'t str,
    /// The text.
    pub text: &'t str,
}

/// Objects that make sense together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Generation {
    /// The load balancers, in file order.
    pub load_balancers: Vec<Arc<LoadBalancer>>,
    /// The directors, in file order.
    pub directors: Vec<Director>,
    /// Settings that are probably not meant so.
    pub warnings: Vec<Problem>,
    /// Documents that are of other APIs, for other readers.
    pub not_ours: Vec<NotOurs>,
}

/// A document of another API.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotOurs {
    /// The file's name.
    pub file: String,
    /// The place of the document.
    pub at: Position,
    /// Its `apiVersion`; empty if it has none.
    pub api_version: String,
    /// Its `kind`; empty if it has none.
    pub kind: String,
}

/// Reads all files. Virtual servers of `already` are taken.
///
/// # Errors
/// All problems of all files, in file order, if there is any. Warnings are no problems.
pub fn parse(files: &[File<'_>], already: &Already) -> Result<Generation, Vec<Problem>> {
    let mut reader = Reader::default();
    reader.files(files, &mut Former::default());
    finish(reader, files, already)
}

/// Load balancers of the last reading by the texts of their documents. A text that is right as YAML may be wrong as
/// JSON: it is the same document in the same format alone.
#[derive(Debug, Default)]
pub struct Former {
    documents: HashMap<Box<str>, FormerDocument>,
    /// Number of the last reading.
    reading: u64,
}

#[derive(Debug)]
struct FormerDocument {
    format: Format,
    object: Arc<LoadBalancer>,
    /// Number of the last reading that had it.
    reading: u64,
}

impl Former {
    /// The load balancer of a document that is as it was; notes that this reading has it.
    fn get(&mut self, format: Format, text: &str) -> Option<Arc<LoadBalancer>> {
        let document = self.documents.get_mut(text);
        let document = document.filter(|document| document.format == format)?;
        document.reading = self.reading;
        Some(Arc::clone(&document.object))
    }

    /// Remembers documents that were parsed, and forgets those that this reading does not have.
    fn replace(&mut self, parsed: Vec<Parsed<'_>>) {
        let reading = self.reading;
        self.documents
            .retain(|_, document| document.reading == reading);
        let parsed = parsed.into_iter().map(|parsed| {
            let document = FormerDocument {
                format: parsed.format,
                object: parsed.object,
                reading,
            };
            (Box::<str>::from(parsed.text), document)
        });
        self.documents.extend(parsed);
    }
}

/// A document that was parsed without a warning.
#[derive(Debug)]
struct Parsed<'t> {
    format: Format,
    text: &'t str,
    object: Arc<LoadBalancer>,
}

/// Like [`parse`], but does not parse the documents again that are as they were in the last reading: their load
/// balancers are the same allocations.
///
/// # Errors
/// Those of [`parse`]. The last reading stays as it was.
pub fn parse_again(
    files: &[File<'_>],
    already: &Already,
    former: &mut Former,
) -> Result<Generation, Vec<Problem>> {
    let mut reader = Reader::default();
    former.reading += 1;
    let parsed = reader.files(files, former);
    let has_problems = !reader.problems.is_empty()
        || !together(&reader.balancers, &reader.directors, already).is_empty();
    // A document that was not parsed has no places for problems, nor its warnings.
    if has_problems {
        return parse(files, already);
    }
    former.replace(parsed);
    Ok(reader.generation())
}

fn finish(
    mut reader: Reader,
    files: &[File<'_>],
    already: &Already,
) -> Result<Generation, Vec<Problem>> {
    reader
        .problems
        .extend(together(&reader.balancers, &reader.directors, already));
    if reader.problems.is_empty() {
        return Ok(reader.generation());
    }
    let order = |name: &str| files.iter().position(|file| file.name == name);
    reader
        .problems
        .sort_by_cached_key(|problem| (order(&problem.file), problem.clone()));
    reader.problems.dedup();
    Err(reader.problems)
}

/// Returns `true` if a document is a director's: its API group or its kind says so. If only one of
/// them does, the other one is mistyped, and an error.
#[must_use]
pub fn is_ours(api_version: Option<&str>, kind: Option<&str>) -> bool {
    let is_group = api_version.is_some_and(|version| version.starts_with("portolan.dev/"));
    let kind = kind.map(|kind| kind.strip_suffix("List").unwrap_or(kind));
    is_group || kind.is_some_and(|kind| ["LoadBalancer", "Director"].contains(&kind))
}

/// The `apiVersion` and the `kind` of a document.
fn identity(document: &Node) -> (Option<&str>, Option<&str>) {
    let text = |field| document.get(field).and_then(Node::text);
    (text("apiVersion"), text("kind"))
}

#[derive(Default)]
struct Reader {
    balancers: Vec<Placed<Arc<LoadBalancer>>>,
    directors: Vec<Placed<Director>>,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    not_ours: Vec<NotOurs>,
}

impl Reader {
    /// Reads all files; `former` has what is not parsed again. Returns the load balancers that were parsed without
    /// a warning, with the texts of their documents.
    fn files<'t>(&mut self, files: &[File<'t>], former: &mut Former) -> Vec<Parsed<'t>> {
        let mut parsed = Vec::new();
        for file in files {
            let format = Format::of(file.name);
            for piece in split(file.text, format) {
                if let Some(object) = former.get(format, piece.text) {
                    self.balancers.push(Placed::unparsed(object, file.name));
                    continue;
                }
                let (objects, warnings) = (self.balancers.len(), self.warnings.len());
                self.piece(file.name, piece);
                let is_quiet = self.warnings.len() == warnings;
                let added = self.balancers[objects..].iter().filter(|_| is_quiet);
                parsed.extend(added.map(|placed| Parsed {
                    format,
                    text: piece.text,
                    object: Arc::clone(&placed.object),
                }));
            }
        }
        parsed
    }

    fn piece(&mut self, file: &str, piece: Piece<'_>) {
        match piece.parse() {
            Ok(document) => self.document(file, document),
            Err(error) => self.problems.push(Problem {
                file: file.to_owned(),
                at: error.at,
                field: String::new(),
                message: error.message,
            }),
        }
    }

    fn document(&mut self, file: &str, document: Node) {
        match identity(&document) {
            (Some(API_VERSION), Some("LoadBalancer")) => self.load_balancer(file, document),
            (Some(API_VERSION), Some("Director")) => self.director(file, document),
            (None, None) => self.unknown(file, &document),
            (version, kind) if is_ours(version, kind) => self.unknown(file, &document),
            (version, kind) => {
                self.not_ours.push(NotOurs {
                    file: file.to_owned(),
                    at: document.at,
                    // Lists of Kubernetes objects have none at times.
                    api_version: version.unwrap_or_default().to_owned(),
                    kind: kind.unwrap_or_default().to_owned(),
                });
                self.items(file, &document);
            }
        }
    }

    /// Reports a document of ours without a right version and kind.
    fn unknown(&mut self, file: &str, document: &Node) {
        let (field, expected, found) = match identity(document) {
            (Some(API_VERSION), kind) => ("kind", "LoadBalancer or Director", kind),
            (version, _) => ("apiVersion", API_VERSION, version),
        };
        let found = found.map_or_else(|| String::from("missing"), |text| format!("{text:?}"));
        self.problems.push(Problem {
            file: file.to_owned(),
            at: document.locate(field),
            field: field.to_owned(),
            message: format!("{found}: expected {expected}"),
        });
    }

    /// Reports objects of ours in a list of others, which nobody reads there.
    fn items(&mut self, file: &str, list: &Node) {
        let Some(Value::List(items)) = list.get("items").map(|items| &items.value) else {
            return;
        };
        for (index, item) in items.iter().enumerate() {
            let (version, kind) = identity(item);
            if is_ours(version, kind) {
                let kind = kind.unwrap_or("an object of portolan.dev");
                self.problems.push(Problem {
                    file: file.to_owned(),
                    at: item.at,
                    field: Path::default()
                        .field("items")
                        .item(index)
                        .as_str()
                        .to_owned(),
                    message: format!("{kind} in a list: expected a document of its own"),
                });
            }
        }
    }

    fn load_balancer(&mut self, file: &str, document: Node) {
        let read = self.read(file, &document, &schema::LOAD_BALANCER);
        let Some((document_of_types, mut findings)) = read else {
            return;
        };
        let object = Arc::new(convert::load_balancer(&document_of_types, &mut findings));
        self.keep(file, document, findings, object, |reader, placed| {
            reader.balancers.push(placed)
        });
    }

    fn director(&mut self, file: &str, document: Node) {
        let read = self.read(file, &document, &schema::DIRECTOR);
        let Some((document_of_types, mut findings)) = read else {
            return;
        };
        let object: Director = convert::director(&document_of_types, &mut findings);
        self.keep(file, document, findings, object, |reader, placed| {
            reader.directors.push(placed)
        });
    }

    /// The document in its type, without the fields whose structure is wrong; nothing if it makes
    /// no sense without them.
    fn read<T: serde::de::DeserializeOwned>(
        &mut self,
        file: &str,
        document: &Node,
        schema: &serde_json::Value,
    ) -> Option<(T, Findings)> {
        let misfits = check(schema, document);
        let fields: Vec<String> = misfits.iter().map(|misfit| misfit.field.clone()).collect();
        let value = if fields.is_empty() {
            document.to_json()
        } else {
            without(document, &fields).to_json()
        };
        let typed = serde_json::from_value(value);
        if let (Err(error), true) = (&typed, misfits.is_empty()) {
            self.problems.push(Problem {
                file: file.to_owned(),
                at: document.at,
                field: String::new(),
                message: error.to_string(),
            });
        }
        self.problems
            .extend(misfits.into_iter().map(|misfit| Problem {
                file: file.to_owned(),
                at: misfit.at,
                field: misfit.field,
                message: misfit.message,
            }));
        Some((typed.ok()?, Findings::without(fields)))
    }

    /// Notes the findings, and keeps the object for comparison with others if it is whole.
    fn keep<T>(
        &mut self,
        file: &str,
        document: Node,
        findings: Findings,
        object: T,
        keep: impl FnOnce(&mut Self, Placed<T>),
    ) {
        let placed = |finding: &Finding| Problem {
            file: file.to_owned(),
            at: document.locate(&finding.field),
            field: finding.field.clone(),
            message: finding.message.clone(),
        };
        self.problems.extend(findings.errors.iter().map(placed));
        self.warnings.extend(findings.warnings.iter().map(placed));
        if findings.is_whole() {
            let placed = Placed {
                object,
                file: file.to_owned(),
                document,
            };
            keep(self, placed);
        }
    }

    fn generation(self) -> Generation {
        Generation {
            load_balancers: self
                .balancers
                .into_iter()
                .map(|placed| placed.object)
                .collect(),
            directors: self
                .directors
                .into_iter()
                .map(|placed| placed.object)
                .collect(),
            warnings: self.warnings,
            not_ours: self.not_ours,
        }
    }
}

#[cfg(test)]
mod tests;
