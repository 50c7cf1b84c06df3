// SPDX-License-Identifier: Apache-2.0

//! Planned writes, and their outcome.

use std::collections::BTreeMap;

use anyhow::Context as _;
use portolan_etcd::{EtcdError, MAX_BYTES, MAX_OPERATIONS, Name, Outcome};
use serde_json::{Value, json};

use super::args::Selector;
use super::files::Wanted;
use super::lines::difference;
use super::store::{Store, Stored};
use crate::reply::Reply;

/// Steps in the order in which they are taken: additions and changes before deletions.
#[derive(Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    unchanged: Vec<(Name, i64)>,
}

/// The write of one object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    name: Name,
    /// The version that it is a change of; 0 for none.
    based_on: i64,
    /// The object; `None` for a deletion.
    value: Option<Value>,
}

impl Step {
    fn verb(&self) -> &'static str {
        match (&self.value, self.based_on) {
            (None, _) => "deleted",
            (Some(_), 0) => "created",
            (Some(_), _) => "changed",
        }
    }

    /// Bytes of its value.
    fn size(&self) -> usize {
        let value = self.value.as_ref();
        value.map_or(0, |value| value.to_string().len())
    }
}

impl Plan {
    /// Stores these objects, and deletes the others with the labels.
    pub(crate) fn new(
        wanted: &[Wanted],
        stored: &BTreeMap<Name, Stored>,
        prune: Option<&Selector>,
    ) -> Self {
        let (mut steps, mut unchanged) = (Vec::new(), Vec::new());
        for wanted in wanted {
            let now = stored.get(&wanted.name);
            match now {
                Some(now) if now.value == wanted.value => {
                    unchanged.push((wanted.name.clone(), now.version));
                }
                _ => steps.push(Step {
                    name: wanted.name.clone(),
                    based_on: wanted
                        .based_on
                        .unwrap_or_else(|| now.map_or(0, |now| now.version)),
                    value: Some(wanted.value.clone()),
                }),
            }
        }
        let is_gone = |(name, stored): &(&Name, &Stored)| {
            prune.is_some_and(|labels| labels.selects(&stored.value))
                && wanted.iter().all(|wanted| wanted.name != **name)
        };
        let gone = stored.iter().filter(is_gone);
        steps.extend(gone.map(|(name, stored)| deletion(name, stored)));
        Self { steps, unchanged }
    }

    /// Deletes these objects.
    ///
    /// # Errors
    /// One is not there.
    pub(crate) fn of_deletions(
        names: &[Name],
        stored: &BTreeMap<Name, Stored>,
    ) -> anyhow::Result<Self> {
        let step = |name: &Name| {
            let stored = stored.get(name);
            let stored = stored.with_context(|| format!("{name}: not found"))?;
            Ok(deletion(name, stored))
        };
        Ok(Self {
            steps: names.iter().map(step).collect::<anyhow::Result<_>>()?,
            unchanged: Vec::new(),
        })
    }

    /// Returns the reply of a dry run, or the conflict that is known already.
    pub(crate) fn show(&self, stored: &BTreeMap<Name, Stored>) -> Reply {
        let now = |step: &Step| stored.get(&step.name).cloned();
        let now: Vec<_> = self.steps.iter().map(now).collect();
        let mut both = self.steps.iter().zip(&now);
        if both.any(|(step, now)| version(now.as_ref()) != step.based_on) {
            return conflict(&self.steps, &now, 0);
        }
        let results = self.steps.iter().map(|step| (step, step.based_on));
        self.reply(results, " (dry run)")
    }

    /// Takes all steps: as many in one transaction as etcd takes.
    pub(crate) async fn carry_out(&self, store: &mut Store) -> anyhow::Result<Reply> {
        let mut done = Vec::new();
        for steps in chunks(&self.steps) {
            let write =
                |step: &Step| store.to_write(&step.name, step.based_on, step.value.as_ref());
            let writes: Vec<_> = steps.iter().map(write).collect();
            let outcome = store.write(&writes).await;
            let outcome = outcome.map_err(|error| failed(error, done.len()))?;
            match outcome {
                Outcome::Written(revision) => {
                    done.extend(steps.iter().map(|step| (step, revision)));
                }
                Outcome::Conflict(now) => {
                    let now = now.into_iter().map(|pair| pair.map(Stored::from));
                    return Ok(conflict(steps, &now.collect::<Vec<_>>(), done.len()));
                }
            }
        }
        Ok(self.reply(done.into_iter(), ""))
    }

    fn reply<'a>(&self, results: impl Iterator<Item = (&'a Step, i64)>, note: &str) -> Reply {
        let mut rows: Vec<_> = results
            .map(|(step, version)| (&step.name, step.verb(), version))
            .collect();
        let unchanged = self.unchanged.iter();
        rows.extend(unchanged.map(|(name, version)| (name, "unchanged", *version)));
        let text = rows
            .iter()
            .map(|(name, verb, _)| format!("{name}: {verb}{note}\n"));
        let values = rows.iter().map(|(name, verb, version)| {
            json!({"object": name.to_string(), "result": verb, "resourceVersion": version.to_string()})
        });
        let value = json!({"objects": values.collect::<Vec<_>>(), "dryRun": !note.is_empty()});
        Reply::new(value, text.collect())
    }
}

/// The steps of each transaction: as many as etcd takes in one.
pub(crate) fn chunks(mut steps: &[Step]) -> Vec<&[Step]> {
    let mut chunks = Vec::new();
    while !steps.is_empty() {
        let mut bytes = 0;
        let fitting = steps.iter().take(MAX_OPERATIONS).take_while(|step| {
            bytes += step.size();
            bytes <= MAX_BYTES
        });
        // A larger object is for etcd to judge.
        let (chunk, rest) = steps.split_at(fitting.count().max(1));
        chunks.push(chunk);
        steps = rest;
    }
    chunks
}

/// A write that failed, with what is known to be written.
pub(crate) fn failed(error: EtcdError, written: usize) -> anyhow::Error {
    let is_open = error.is_without_answer();
    let mut error = anyhow::Error::from(error);
    if is_open {
        error = error.context("no answer to a write, which may be done all the same");
    }
    match written {
        0 => error,
        many => error.context(of_earlier(many)),
    }
}

fn of_earlier(written: usize) -> String {
    format!("{written} objects of earlier transactions are written")
}

/// The version of a stored object; 0 for none.
fn version(stored: Option<&Stored>) -> i64 {
    stored.map_or(0, |stored| stored.version)
}

fn deletion(name: &Name, stored: &Stored) -> Step {
    Step {
        name: name.clone(),
        based_on: stored.version,
        value: None,
    }
}

/// Both versions of each object that has changed since.
fn conflict(steps: &[Step], now: &[Option<Stored>], written: usize) -> Reply {
    let (mut text, mut values) = (String::new(), Vec::new());
    for (step, now) in steps.iter().zip(now) {
        let version = version(now.as_ref());
        if version == step.based_on {
            continue;
        }
        let (name, based_on) = (&step.name, version_text(step.based_on));
        let stored = version_text(version);
        text.push_str(&format!(
            "{name}: conflict: based on {based_on}, but {stored} is stored\n"
        ));
        let theirs = now.as_ref().map(|now| &now.value);
        text.push_str(&shown(&stored, theirs, step.value.as_ref()));
        values.push(json!({
            "object": name.to_string(),
            "basedOn": step.based_on.to_string(),
            "resourceVersion": version.to_string(),
            "stored": theirs,
            "wanted": step.value,
        }));
    }
    match written {
        0 => text.push_str("nothing was written\n"),
        many => text.push_str(&format!("{}\n", of_earlier(many))),
    }
    let value = json!({"conflicts": values, "written": written});
    Reply::new(value, text).with_code(super::CONFLICT)
}

fn version_text(version: i64) -> String {
    match version {
        0 => "no version".to_owned(),
        version => format!("version {version}"),
    }
}

fn shown(stored: &str, theirs: Option<&Value>, ours: Option<&Value>) -> String {
    let yaml = |value: Option<&Value>| {
        let text = value.map(serde_saphyr::to_string);
        // JSON has nothing that YAML has not.
        text.transpose().unwrap_or_default().unwrap_or_default()
    };
    let difference = difference(&yaml(theirs), &yaml(ours));
    format!("--- {stored}\n+++ wanted\n{difference}")
}

/// The objects of files whose stored ones differ.
pub(crate) fn differences(wanted: &[Wanted], stored: &BTreeMap<Name, Stored>) -> Reply {
    let (mut text, mut values) = (String::new(), Vec::new());
    for wanted in wanted {
        let now = stored.get(&wanted.name);
        let theirs = now.map(|now| &now.value);
        if theirs == Some(&wanted.value) {
            continue;
        }
        let version = version_text(now.map_or(0, |now| now.version));
        text.push_str(&format!("{}\n", wanted.name));
        text.push_str(&shown(&version, theirs, Some(&wanted.value)));
        values.push(
            json!({"object": wanted.name.to_string(), "stored": theirs, "wanted": wanted.value}),
        );
    }
    let is_equal = values.is_empty();
    if is_equal {
        text.push_str("equal\n");
    }
    let value = json!({"equal": is_equal, "differences": values});
    Reply::new(value, text).with_code(u8::from(!is_equal))
}
