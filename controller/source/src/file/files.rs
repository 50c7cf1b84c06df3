// SPDX-License-Identifier: Apache-2.0

//! The files as they were read last, and the changes of each reading.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan_catalog::ObjectChange;
use portolan_director::Director;
use portolan_model::{ByRecord, Record};

use super::balancers::{self, Balancers, HooksOf, Texts};
use super::exports::Exports;
use super::guard::Guards;
use super::merge::{Merged, Told, ToldNames};
use super::parse::{Contents, parse};
use super::problem::FileProblem;
use super::scan::{self, Reading, Seen};
use crate::HeldDeletions;
use crate::deletions::GuardConfig;
use crate::groups::GroupedNodes;
use crate::objects::{ProxyName, Scope};

/// The result of reading the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The changes since the last reading; everything at the first one.
    pub changes: Vec<ObjectChange>,
    /// The `Director` in force of the named host, defaults without one; `None` before anything was read, and
    /// without a host's name.
    pub director: Option<Arc<Director>>,
    /// The hooks in force of load balancers; `None` before anything was read, and without a host's name.
    pub hooks: Option<Arc<HooksOf>>,
    /// The changes for DNS, if it is on.
    pub names: Vec<portolan_dns::NamesChange>,
    /// All problems now but those of one known object, which are in the changes.
    pub problems: Vec<FileProblem>,
    /// Whether every path could be read at least once. With load balancers, also whether one reading had no error.
    pub complete: bool,
    /// Whether every path could be listed and every file read this time.
    pub is_readable: bool,
}

/// Files that are read again and again.
#[derive(Debug)]
pub struct Files {
    roots: Vec<Root>,
    /// Paths to read in place of the roots.
    next: Option<Vec<PathBuf>>,
    scope: Scope,
    files: BTreeMap<PathBuf, Reader>,
    told: Told,
    guards: Option<Guards>,
    /// The records that DNS has, if it is on.
    told_names: Option<ToldNames>,
    balancers: Balancers,
    nodes: GroupedNodes,
    /// Exports that other clusters may import; `None` if nothing is shared.
    exports: Option<Exports>,
    /// Paths that cannot be listed.
    unlisted: Vec<FileProblem>,
    /// All problems but those of one known object.
    problems: Vec<FileProblem>,
    complete: bool,
    /// Whether errors have kept the load balancers of the last reading from being applied.
    is_refused: bool,
}

/// A configured path.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    /// Its files; `None` before it could be listed once.
    files: Option<Vec<PathBuf>>,
}

/// One file.
#[derive(Debug, Default)]
struct Reader {
    seen: Option<Seen>,
    contents: Contents,
    /// Its text, if it may have load balancers.
    text: Option<Arc<str>>,
    /// The reason why its contents are older than the file.
    stale: Option<String>,
    /// Whether the last reading failed.
    is_unreadable: bool,
}

impl Files {
    /// Files that are not read yet.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>, cluster: &Arc<str>) -> Self {
        let root = |path| Root { path, files: None };
        Self {
            roots: paths.into_iter().map(root).collect(),
            next: None,
            scope: Scope::new(cluster),
            files: BTreeMap::new(),
            told: Told::new(),
            guards: None,
            told_names: None,
            balancers: Balancers::default(),
            nodes: GroupedNodes::default(),
            exports: None,
            unlisted: Vec::new(),
            problems: Vec::new(),
            complete: false,
            is_refused: false,
        }
    }

    /// Reads other paths from now on: once all of them can be listed, in place of those before.
    pub(super) fn set_paths(&mut self, paths: Vec<PathBuf>) {
        self.next = Some(paths);
    }

    /// Serves the Services of this proxy; by default, those of the default one.
    #[must_use]
    pub fn of_proxy(mut self, proxy: Option<ProxyName>) -> Self {
        self.scope.proxy = proxy;
        self
    }

    /// Reads the `Director` of this host.
    #[must_use]
    pub fn on_host(mut self, host: Arc<str>) -> Self {
        self.balancers.host = Some(host);
        self
    }

    /// Also reads objects that only DNS needs: headless Services, Namespaces, all Pods.
    #[must_use]
    pub fn with_names(mut self) -> Self {
        self.told_names = Some(ToldNames::new());
        self
    }

    /// Also reads what other clusters may import: ServiceExports, and Namespaces.
    #[must_use]
    pub fn sharing(mut self) -> Self {
        self.scope.shares = true;
        self.exports = Some(Exports::default());
        self
    }

    /// Whether Services without a ServiceExport may be exported, too.
    pub(super) fn set_automatic(&mut self, automatic: bool) {
        if let Some(exports) = &mut self.exports {
            exports.set_automatic(automatic);
        }
    }

    /// Guards against mass deletions.
    #[must_use]
    pub fn guarded(mut self, config: GuardConfig, holds: &Arc<HeldDeletions>) -> Self {
        self.guards = Some(Guards::new(&self.scope.cluster, config, holds));
        self
    }

    /// Reads changed files. Blocks.
    pub fn refresh(&mut self) -> Report {
        let unlisted = self.list();
        let is_released = self.guards.as_mut().is_some_and(Guards::look);
        let exports = self.exports.as_mut();
        let is_other = exports.is_some_and(Exports::take_changed);
        let is_news = self.read() || unlisted != self.unlisted || is_released || is_other;
        self.unlisted = unlisted;
        let (changes, names) = match is_news {
            true => self.merge(),
            false => Default::default(),
        };
        // Files of which none was ever applied say nothing about what there should be.
        self.complete |= self.is_complete() && !self.is_refused;
        let has_host = self.complete && self.balancers.host.is_some();
        Report {
            changes,
            names,
            director: self.balancers.director().filter(|_| self.complete),
            hooks: has_host.then(|| self.balancers.hooks()),
            problems: self.problems.clone(),
            complete: self.complete,
            is_readable: self.unlisted.is_empty()
                && self.files.values().all(|reader| !reader.is_unreadable),
        }
    }

    /// Lists the files. A path that cannot be listed keeps its files.
    fn list(&mut self) -> Vec<FileProblem> {
        let mut problems = self.list_next();
        for root in &mut self.roots {
            match scan::list(&root.path) {
                Ok(files) => root.files = Some(files),
                Err(error) => {
                    let why = format!("{error}; {}", kept(root.files.is_some()));
                    problems.push(FileProblem::new(&root.path, None, String::new(), why));
                }
            }
        }
        problems
    }

    /// Takes the next paths if all of them can be listed, and else says why not.
    fn list_next(&mut self) -> Vec<FileProblem> {
        let mut problems = Vec::new();
        for path in self.next.iter().flatten() {
            if let Err(error) = scan::list(path) {
                let why = format!("{error}; the paths before stay in use");
                problems.push(FileProblem::new(path, None, String::new(), why));
            }
        }
        if problems.is_empty()
            && let Some(paths) = self.next.take()
        {
            let root = |path| Root { path, files: None };
            self.roots = paths.into_iter().map(root).collect();
        }
        problems
    }

    /// Reads the files; returns whether anything changed.
    fn read(&mut self) -> bool {
        let mut before = std::mem::take(&mut self.files);
        let mut is_news = false;
        let with_names = self.told_names.is_some();
        for path in order(&self.roots) {
            let mut reader = before.remove(path).unwrap_or_default();
            is_news |= reader.refresh(path, &self.scope, with_names);
            self.files.insert(path.clone(), reader);
        }
        is_news || !before.is_empty()
    }

    /// Merges the contents of all files. If they have load balancers, or had some, and anything is wrong, nothing changes.
    fn merge(&mut self) -> (Vec<ObjectChange>, Vec<portolan_dns::NamesChange>) {
        let read = self.read_balancers();
        self.is_refused = read.is_err();
        let generation = match read {
            Ok(generation) => generation,
            Err(problems) => {
                self.problems = problems;
                return Default::default();
            }
        };
        let (mut changes, names) = self.merge_objects();
        let cluster = Arc::clone(&self.scope.cluster);
        changes.extend(generation.map(|records| ObjectChange::LoadBalancers { cluster, records }));
        (changes, names)
    }

    /// The load balancers of all files if they changed.
    fn read_balancers(&mut self) -> Result<Option<ByRecord<Record>>, Vec<FileProblem>> {
        let mut texts = Texts::new();
        let mut problems = Vec::new();
        for path in order(&self.roots) {
            let Some(reader) = self.files.get(path) else {
                continue;
            };
            texts.extend(reader.text.as_deref().map(|text| (path.as_path(), text)));
            // Beside a load balancer, a bad object that is known is a problem of its own.
            let is_alone = reader.text.is_none();
            let found = reader.contents.problems.iter();
            let found = found.filter(|found| is_alone || found.object.is_none());
            problems.extend(found.map(|found| found.problem.clone()));
            let stale = reader.stale.iter();
            problems.extend(stale.map(|why| FileProblem::new(path, None, String::new(), why)));
        }
        let generation = self.balancers.read(&texts, &self.scope.cluster);
        if texts.is_empty() && !self.balancers.has_objects() {
            // Files of Kubernetes objects alone: an error in one stops no other.
            return generation.map(|generation| self.balancers.replace(generation));
        }
        problems.extend(self.unlisted.iter().cloned());
        let found = match generation {
            Ok(generation) if problems.is_empty() => {
                return Ok(self.balancers.replace(generation));
            }
            Ok(_) => Vec::new(),
            Err(found) => found,
        };
        // What is no object of anybody is found by both readers.
        problems.retain(|problem| !found.iter().any(|other| other.is_beside(problem)));
        problems.extend(found);
        let first = texts.first().map(|(path, _)| *path);
        let first = first.or(problems.first().map(|problem| problem.file.as_path()));
        let not_applied = first.map(|first| self.balancers.not_applied(first, problems.len()));
        problems.extend(not_applied);
        Err(problems)
    }

    fn merge_objects(&mut self) -> (Vec<ObjectChange>, Vec<portolan_dns::NamesChange>) {
        let kept;
        let mut merged = Merged::default();
        let mut problems = self.unlisted.clone();
        for path in order(&self.roots) {
            let Some(reader) = self.files.get(path) else {
                continue;
            };
            for (object, entry) in &reader.contents.entries {
                merged.add(path, object, entry);
            }
            if let Some(why) = &reader.stale {
                problems.push(FileProblem::new(path, None, String::new(), why));
                continue;
            }
            // Problems of known objects go with their changes.
            let of_files = reader
                .contents
                .problems
                .iter()
                .filter(|found| found.object.is_none());
            problems.extend(of_files.map(|found| found.problem.clone()));
        }
        if let Some(guards) = &mut self.guards {
            kept = guards.judge(merged.entries());
            kept.iter()
                .for_each(|(object, entry)| merged.keep(object, entry));
        }
        let told = self.told_names.as_mut();
        let names = told.map(|told| merged.names(told)).unwrap_or_default();
        let exports = self.exports.as_mut();
        let shared = exports.map(|exports| exports.of(merged.entries()));
        merged.tell_nodes(&mut self.nodes);
        self.nodes.direct_all(self.balancers.sent());
        let mut changes = merged.changes(shared.unwrap_or_default(), &mut self.told);
        changes.extend(self.nodes.changes(self.balancers.selectors()));
        // A path that is a missing file is reported twice.
        problems.sort();
        problems.dedup();
        self.problems = problems;
        (changes, names)
    }

    fn is_complete(&self) -> bool {
        self.roots.iter().all(|root| root.files.is_some())
            && self.files.values().all(|reader| reader.seen.is_some())
    }
}

/// The files, each once: in the order of the configured paths, then by name.
fn order(roots: &[Root]) -> Vec<&PathBuf> {
    let mut seen = BTreeSet::new();
    let files = roots.iter().filter_map(|root| root.files.as_ref());
    files.flatten().filter(|file| seen.insert(*file)).collect()
}

impl Reader {
    /// Reads the file if it changed; returns whether anything changed.
    fn refresh(&mut self, path: &Path, scope: &Scope, names: bool) -> bool {
        let reading = scan::read(path, self.seen.as_mut());
        self.is_unreadable = reading.is_err();
        let stale = match reading {
            Ok(Reading::Busy) => return false,
            Ok(Reading::Unchanged) => None,
            Ok(Reading::Content(text, seen)) => {
                let contents = parse(path, &text, scope, names);
                if self.replace_contents(&text, seen, contents) {
                    self.stale = None;
                    return true;
                }
                Some(format!("empty; {}", kept(true)))
            }
            Err(error) => Some(format!(
                "{}; {}",
                describe(&error),
                kept(self.seen.is_some())
            )),
        };
        std::mem::replace(&mut self.stale, stale) != self.stale
    }

    /// Replaces the contents; returns whether it did. A file that is suddenly empty is most likely
    /// being written in place, and is refused. A comment makes an empty file valid.
    fn replace_contents(&mut self, text: &str, seen: Seen, contents: Contents) -> bool {
        let had_objects = !self.contents.entries.is_empty() || self.text.is_some();
        if text.trim().is_empty() && had_objects {
            return false;
        }
        self.seen = Some(seen);
        let has_directors = contents.has_directors || balancers::has_ours(text);
        self.text = has_directors.then(|| text.into());
        let before = std::mem::replace(&mut self.contents, contents);
        if self.contents.torn {
            for (object, mut entry) in before.entries {
                entry.is_carried = true;
                self.contents.entries.entry(object).or_insert(entry);
            }
        }
        true
    }
}

/// The fate of the objects of an unreadable file.
fn kept(was_read: bool) -> &'static str {
    if was_read {
        "its objects stay as they were"
    } else {
        "waiting for it"
    }
}

fn describe(error: &io::Error) -> String {
    match error.get_ref() {
        Some(inner) if error.kind() == io::ErrorKind::InvalidData => format!("not text: {inner}"),
        _ => error.to_string(),
    }
}
