// SPDX-License-Identifier: Apache-2.0

//! Policy objects in files, read again whenever a file changes, and those of an API server.

mod served;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use portolan_policy::{Fault, File as Text, Kind, ObjectName, Objects, read_all};
use portolan_source::file::list;
use portolan_source::kubernetes::Resources;

use served::ServedPolicy;
pub(crate) use served::resources;

/// Longest file in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Files of policy objects, and the objects in force: of each the last good version.
#[derive(Debug)]
pub(super) struct PolicyFiles {
    paths: Vec<PathBuf>,
    texts: BTreeMap<PathBuf, String>,
    unreadable: Vec<String>,
    is_read: bool,
    /// Completeness of the texts: every object of them is in force, in some version.
    is_whole: bool,
    /// `true` once a Cluster was in force.
    had_clusters: bool,
    /// The objects of an API server; `None` with files alone.
    served: Option<ServedPolicy>,
    /// The names of these, as of the last judgement.
    judged: BTreeSet<ObjectName>,
    /// Reasons and messages of objects that are not in force as they are.
    refused: BTreeMap<ObjectName, (String, String)>,
    objects: Objects,
    problems: Vec<String>,
}

impl PolicyFiles {
    pub(super) fn new(paths: Vec<PathBuf>) -> Self {
        Self {
            paths,
            texts: BTreeMap::new(),
            unreadable: Vec::new(),
            is_read: false,
            is_whole: false,
            had_clusters: false,
            served: None,
            judged: BTreeSet::new(),
            refused: BTreeMap::new(),
            objects: Objects::default(),
            problems: Vec::new(),
        }
    }

    /// Waits for the objects of an API server: without them none is in force, as one of them may deny something.
    pub(super) fn expect_served(&mut self) {
        self.served = Some(ServedPolicy::default());
    }

    /// Takes the objects of the API server. Returns whether anything changed.
    pub(super) fn take(&mut self, resources: &Resources) -> bool {
        let before = self.served.take().unwrap_or_default();
        let served = ServedPolicy::new(resources);
        let is_news = served != before;
        self.served = Some(served);
        if is_news {
            self.judge();
        }
        is_news
    }

    /// Returns the objects without the Clusters that were deleted and created again with other ids; `None` if there are
    /// none. They are to be taken first: a Cluster in force keeps its id, and all that is known of the one before goes.
    pub(super) fn without_recreated(&self, resources: &Resources) -> Option<Resources> {
        let recreated = self.served.as_ref()?.recreated(resources);
        if recreated.is_empty() {
            return None;
        }
        let mut without = resources.clone();
        for name in recreated {
            without.objects.remove(&(Kind::Cluster.as_str(), name));
        }
        Some(without)
    }

    /// The objects in force.
    pub(super) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// All that is wrong.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Reasons and messages of the Clusters that are not in force as they are.
    pub(super) fn refused_clusters(&self) -> BTreeMap<String, (String, String)> {
        let clusters = self.refused.iter();
        let clusters = clusters.filter(|(object, _)| object.kind == Kind::Cluster);
        let named = clusters.map(|(object, why)| (object.name.clone(), why.clone()));
        named.collect()
    }

    /// Returns `true` if every file could be read since the start, and each of its objects is in force; and so with
    /// the API server. Before that an object that is missing may be in a file that is late, or be one that is bad.
    pub(super) fn is_complete(&self) -> bool {
        // Without any Cluster the API server may have lost them all, or not have them yet.
        self.is_known() && (self.served.is_none() || self.had_clusters)
    }

    /// As [`Self::is_complete`], but an API server may have no Clusters.
    pub(super) fn is_known(&self) -> bool {
        let served = self.served.as_ref();
        let is_listed = served.is_none_or(|served| served.is_listed);
        self.is_read && self.is_whole && self.unreadable.is_empty() && is_listed
    }

    /// Reads the files; returns whether anything changed. Blocks.
    pub(super) fn refresh(&mut self) -> bool {
        let (texts, unreadable) = self.read_texts();
        if self.is_read && texts == self.texts && unreadable == self.unreadable {
            return false;
        }
        (self.texts, self.unreadable, self.is_read) = (texts, unreadable, true);
        self.judge();
        true
    }

    fn read_texts(&self) -> (BTreeMap<PathBuf, String>, Vec<String>) {
        let (mut texts, mut unreadable) = (BTreeMap::new(), Vec::new());
        let mut note = |path: &Path, error: &dyn std::fmt::Display| {
            unreadable.push(format!(
                "{}: {error}; its objects stay as they were",
                path.display()
            ));
        };
        for root in &self.paths {
            let files = list(root).unwrap_or_else(|error| {
                note(root, &error);
                let known = self.texts.keys().filter(|path| path.starts_with(root));
                known.cloned().collect()
            });
            for path in files {
                let before = self.texts.get(&path);
                match (read_text(&path), before) {
                    // Most likely it is being written in place. A comment makes an empty file valid.
                    (Ok(text), Some(before))
                        if text.trim().is_empty() && !before.trim().is_empty() =>
                    {
                        note(&path, &"empty");
                        texts.insert(path, before.clone());
                    }
                    (Ok(text), _) => {
                        texts.insert(path, text);
                    }
                    (Err(error), before) => {
                        note(&path, &error);
                        texts.extend(before.map(|text| (path, text.clone())));
                    }
                }
            }
        }
        (texts, unreadable)
    }

    fn judge(&mut self) {
        let (served, is_listed) = match &self.served {
            Some(served) => (&served.objects[..], served.is_listed),
            None => (&[][..], true),
        };
        let mut problems = self.unreadable.clone();
        let of_server = self.served.iter().flat_map(|served| &served.problems);
        problems.extend(of_server.cloned());
        if !is_listed {
            self.problems = problems;
            return;
        }
        let names: Vec<_> = self
            .texts
            .keys()
            .map(|path| path.display().to_string())
            .collect();
        let files = names.iter().zip(self.texts.values());
        let files: Vec<_> = files.map(|(name, text)| Text { name, text }).collect();
        let reading = read_all(&files, served, &self.objects);
        let now: BTreeSet<_> = served.iter().map(|object| object.name.clone()).collect();
        let deleted = self.judged.difference(&now).cloned().collect();
        problems.extend(reading.problems.iter().map(ToString::to_string));
        let others = reading.not_ours.iter().map(|other| {
            let (file, line) = (&other.file, other.at.line);
            format!("{file}:{line}: {} is no object of the policy", other.kind)
        });
        problems.extend(others);
        let mut why = BTreeMap::new();
        let mut note = |object: &ObjectName, fault: &Fault| {
            let reason = fault.error.reason();
            if !reason.is_warning() {
                let said = (reason.to_string(), fault.to_string());
                why.entry(object.clone()).or_insert(said);
            }
        };
        // Those of files are named by place.
        let of_server = reading.problems.iter();
        for problem in of_server.filter(|problem| problem.file.is_empty()) {
            if let Some(object) = &problem.object {
                note(object, &problem.fault);
            }
        }
        let (refused, is_incomplete) = (reading.refused(), reading.is_incomplete());
        let (objects, faults) = reading.in_force_without(&self.objects, &deleted);
        self.judged = now;
        faults
            .iter()
            .for_each(|found| note(&found.object, &found.fault));
        self.refused = why;
        // A process that begins has no last good versions.
        let left_out = faults.iter().map(|found| &found.object);
        let mut refused = refused.iter().chain(left_out);
        self.is_whole = !is_incomplete && refused.all(|name| objects.get(name).is_some());
        problems.extend(
            faults
                .iter()
                .map(|found| format!("{}: {}", found.object, found.fault)),
        );
        self.had_clusters |= !objects.clusters.is_empty();
        (self.objects, self.problems) = (objects, problems);
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_FILE {
        let message = format!("longer than {MAX_FILE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
