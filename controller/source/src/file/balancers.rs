// SPDX-License-Identifier: Apache-2.0

//! Load balancers in files: all of all files are one generation, which is in force as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use portolan_catalog::{Kind, ObjectKey, ObjectRef};
use portolan_director::{
    Already, Director, Former, Generation, Hooks, LoadBalancer, ObjectName, Position, Problem,
    RecordCache, parse_again,
};
use portolan_model::check::CheckDefaults;
use portolan_model::{ByRecord, Record};
use tracing::warn;

use super::problem::FileProblem;
use crate::groups::Selector;

/// Beginning of the API version of load balancers and directors.
const VERSIONS: &str = "portolan.dev/";

/// Returns `true` if a YAML document is a director's, without parsing it: it says so in a line of
/// its own. It is read with those of all files.
pub(super) fn is_document(text: &str) -> bool {
    let mut versions = text
        .lines()
        .filter_map(|line| line.strip_prefix("apiVersion:"));
    versions.any(|version| version.trim_start().starts_with(VERSIONS))
}

/// Returns `true` if a text has a director's objects: an `apiVersion` of its group, be it in a
/// document that cannot be parsed. Annotations of Kubernetes objects have the group in their names
/// too.
pub(super) fn has_ours(text: &str) -> bool {
    let is_punctuation = |c: char| c.is_whitespace() || matches!(c, ':' | '"' | '\'');
    let mut mentions = text.match_indices(VERSIONS);
    mentions.any(|(at, _)| {
        let before = text[..at].trim_end_matches(is_punctuation);
        before.ends_with("apiVersion")
    })
}

/// Hooks by the load balancer that has some.
pub type HooksOf = BTreeMap<ObjectName, Hooks>;

/// The last good generation.
#[derive(Debug, Default)]
pub(super) struct Balancers {
    in_force: ByRecord<Record>,
    /// Whether any load balancer or Director is in force.
    has_objects: bool,
    /// Name of this host.
    pub(super) host: Option<Arc<str>>,
    /// The host's director in force.
    director: Option<Arc<Director>>,
    /// The Directors of a fleet's hosts in force, as they are sent.
    sent: BTreeMap<ObjectRef, Arc<str>>,
    /// The node selectors in force.
    selectors: BTreeSet<Selector>,
    /// The hooks in force of this host's load balancers.
    hooks: Arc<HooksOf>,
    /// When it came into force, as `2026-01-02T03:04:05Z`.
    since: Option<String>,
    warnings: Vec<Problem>,
    /// Documents of the last good reading.
    former: Former,
    /// Records of the last good reading.
    records: RecordCache,
}

/// Files that may have objects of a director, in order.
pub(super) type Texts<'t> = Vec<(&'t Path, &'t str)>;

impl Balancers {
    /// Reads all texts.
    ///
    /// # Errors
    /// All that is wrong.
    pub(super) fn read(
        &mut self,
        texts: &Texts<'_>,
        cluster: &Arc<str>,
    ) -> Result<Read, Vec<FileProblem>> {
        let mut generation = generation(texts, self.host.as_deref(), &mut self.former)?;
        let director = self
            .host
            .as_deref()
            .map(|host| director_of(&mut generation, host));
        if generation.warnings != self.warnings {
            generation
                .warnings
                .iter()
                .for_each(|found| warn!("{found}"));
            self.warnings.clone_from(&generation.warnings);
        }
        // Tables are the same for all hosts of a fleet, whose Directors have the defaults of checks.
        let defaults = match (&director, &generation.directors[..]) {
            (Some(director), _) if is_declared(&generation, director) => {
                Some(director.checks.defaults.clone())
            }
            (Some(_), [director]) => Some(director.checks.defaults.clone()),
            (Some(_), _) => Some(CheckDefaults::default()),
            (None, _) => None,
        };
        let sent = match self.host {
            Some(_) => BTreeMap::new(),
            None => sent(&generation.directors, cluster),
        };
        let balancers = &generation.load_balancers;
        let named = balancers.iter().map(|each| (&each.name, &each.hooks));
        let hooks = named.filter(|(_, hooks)| **hooks != Hooks::default());
        Ok(Read {
            has_objects: !balancers.is_empty() || !generation.directors.is_empty(),
            hooks: hooks
                .map(|(name, hooks)| (name.clone(), hooks.clone()))
                .collect(),
            selectors: selectors(balancers),
            records: self.records.records(balancers, defaults.as_ref(), cluster),
            director,
            sent,
        })
    }

    /// Returns `true` if any load balancer or Director is in force.
    pub(super) fn has_objects(&self) -> bool {
        self.has_objects
    }

    /// The Directors of a fleet's hosts that are in force, as they are sent, by the names of their Nodes.
    pub(super) fn sent(&self) -> &BTreeMap<ObjectRef, Arc<str>> {
        &self.sent
    }

    /// The host's director in force.
    pub(super) fn director(&self) -> Option<Arc<Director>> {
        self.director.clone()
    }

    /// The node selectors in force, each once.
    pub(super) fn selectors(&self) -> impl Iterator<Item = &Selector> {
        self.selectors.iter()
    }

    /// The hooks in force.
    pub(super) fn hooks(&self) -> Arc<HooksOf> {
        Arc::clone(&self.hooks)
    }

    /// Puts a generation in force; returns its records if they differ from those before.
    pub(super) fn replace(&mut self, read: Read) -> Option<ByRecord<Record>> {
        let Read {
            has_objects,
            records: generation,
            director,
            hooks,
            selectors,
            sent,
        } = read;
        self.has_objects = has_objects;
        self.selectors = selectors;
        self.sent = sent;
        if hooks != *self.hooks {
            self.hooks = Arc::new(hooks);
        }
        if director.as_ref() != self.director.as_deref() {
            self.director = director.map(Arc::new);
        }
        if generation == self.in_force {
            return None;
        }
        self.since = Some(jiff::Timestamp::now().strftime("%FT%TZ").to_string());
        self.in_force = generation.clone();
        Some(generation)
    }

    /// The last line about files that are not applied.
    pub(super) fn not_applied(&self, file: &Path, problems: usize) -> FileProblem {
        let text = portolan_director::not_applied("", problems, self.since.as_deref());
        let text = text.trim_start_matches(": ");
        FileProblem::new(file, None, String::new(), text)
    }
}

/// A generation as it was read.
#[derive(Debug)]
pub(super) struct Read {
    has_objects: bool,
    records: ByRecord<Record>,
    director: Option<Director>,
    hooks: HooksOf,
    selectors: BTreeSet<Selector>,
    sent: BTreeMap<ObjectRef, Arc<str>>,
}

/// Directors as they are sent, by the names of their Nodes.
fn sent(directors: &[Director], cluster: &Arc<str>) -> BTreeMap<ObjectRef, Arc<str>> {
    let directors = directors.iter().map(|director| {
        let key = ObjectKey {
            cluster: Arc::clone(cluster),
            namespace: "".into(),
            name: director.name.as_str().into(),
        };
        let kind = Kind::Node;
        (ObjectRef { kind, key }, director.to_sent().into())
    });
    directors.collect()
}

fn selectors(balancers: &[Arc<LoadBalancer>]) -> BTreeSet<Selector> {
    let selectors = balancers.iter().map(|balancer| &balancer.node_selector);
    let selectors = selectors.filter(|selector| !selector.is_empty());
    selectors.cloned().collect()
}

fn is_declared(generation: &Generation, director: &Director) -> bool {
    let mut names = generation.directors.iter().map(|director| &director.name);
    names.any(|name| *name == director.name)
}

/// The director of a host; the defaults without one, with a warning if there are others.
fn director_of(generation: &mut Generation, host: &str) -> Director {
    let mut directors = generation.directors.iter();
    if let Some(director) = directors.find(|director| director.name == host) {
        return director.clone();
    }
    if let Some(other) = generation.directors.first() {
        generation.warnings.push(Problem {
            file: format!("Director {}", other.name),
            at: Position::default(),
            field: "metadata.name".to_owned(),
            message: format!("this host is {host}: it has no Director, and gets the defaults"),
        });
    }
    Director::new(host)
}

fn generation(
    texts: &Texts<'_>,
    host: Option<&str>,
    former: &mut Former,
) -> Result<Generation, Vec<FileProblem>> {
    let named: Vec<_> = texts
        .iter()
        .map(|(path, text)| (path.display().to_string(), *text))
        .collect();
    let files: Vec<_> = named
        .iter()
        .map(|(name, text)| portolan_director::File { name, text })
        .collect();
    let generation = parse_again(&files, &Already::default(), former)
        .map_err(|problems| problems.into_iter().map(file_problem).collect::<Vec<_>>())?;
    let first = texts.first().map_or(Path::new(""), |(path, _)| path);
    let unsupported = unsupported(&generation, first, host);
    if unsupported.is_empty() {
        Ok(generation)
    } else {
        Err(unsupported)
    }
}

fn file_problem(from: Problem) -> FileProblem {
    let position = (from.at.line > 0).then_some((from.at.line, from.at.column));
    FileProblem::new(from.file, position, from.field, from.message)
}

/// Returns a problem for each field that is valid but cannot be programmed.
fn unsupported(generation: &Generation, file: &Path, host: Option<&str>) -> Vec<FileProblem> {
    let mut found = Vec::new();
    for balancer in &generation.load_balancers {
        let object = format!("LoadBalancer {}", balancer.name);
        let fields = match host {
            Some(_) => portolan_director::unsupported(balancer),
            None => portolan_director::unsupported_in_fleet(balancer),
        };
        found.extend(fields.into_iter().map(|field| (object.clone(), field)));
    }
    let without_host = generation.directors.iter().filter(|_| host.is_none());
    for director in without_host {
        let object = format!("Director {}", director.name);
        let fields = portolan_director::unsupported_from_controller(director);
        found.extend(fields.into_iter().map(|field| (object.clone(), field)));
    }
    let problem = |(object, (field, message)): (String, (String, String))| {
        FileProblem::new(file, None, format!("{object}: {field}"), message)
    };
    found.into_iter().map(problem).collect()
}
