// SPDX-License-Identifier: Apache-2.0

//! Configurations of other directors, read into ours.
//!
//! An importer builds documents and a [`Note`] for everything that it read. The documents then
//! pass the same checks as a file; what these find is a note too. Nothing is read but the texts
//! that the caller gives.

pub mod ipvsadm;
pub mod keepalived;
pub mod kernel;
pub mod ldirectord;

use std::collections::HashMap;
use std::fmt;

use crate::document::{
    ApiVersion, DirectorDocument, DirectorKind, DirectorSpec, LoadBalancerDocument, Metadata,
    StepDocument,
};
use crate::generation::{File, Generation, parse};
use crate::problem::counted;
use crate::rules::Already;
use crate::write::to_yaml;

/// Result of the import of one setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// `=`: it has the same meaning here.
    Same,
    /// `i`: it has no effect here, or always holds.
    Ignored,
    /// `~`: it became the nearest that there is.
    Nearest,
    /// `w`: it has no counterpart and is left out.
    LeftOut,
    /// It cannot be imported, and nothing is.
    Error,
}

impl Class {
    /// All classes, in the order of reports.
    pub const ALL: [Self; 5] = [
        Self::Same,
        Self::Ignored,
        Self::Nearest,
        Self::LeftOut,
        Self::Error,
    ];

    /// The sign in reports.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Same => "=",
            Self::Ignored => "i",
            Self::Nearest => "~",
            Self::LeftOut => "w",
            Self::Error => "error",
        }
    }
}

/// One setting, and the result of its import.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The file's name.
    pub file: String,
    /// The line, from 1; 0 for the file as a whole.
    pub line: u64,
    /// Result of its import.
    pub class: Class,
    /// The setting's own name.
    pub setting: String,
    /// Its counterpart, or the reason that it has none; empty if it has the same meaning.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = self.class.sign();
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {sign}: {}", self.setting)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Import {
    /// The objects; none if there is an error.
    pub generation: Generation,
    /// All settings, by file and line.
    pub notes: Vec<Note>,
}

impl Import {
    /// The objects as canonical YAML; empty if there is an error.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        self.generation.to_yaml()
    }

    /// Returns the number of settings of a class.
    #[must_use]
    pub fn count(&self, class: Class) -> usize {
        self.notes.iter().filter(|note| note.class == class).count()
    }

    /// The exit code: 0 if all is the same or ignored, 2 with warnings, 1 with errors, after which
    /// nothing is to be written.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self.notes.iter().map(|note| note.class).max() {
            Some(Class::Error) => 1,
            Some(Class::Nearest | Class::LeftOut) => 2,
            _ => 0,
        }
    }

    /// Warnings and errors, one a line, and the counts by class.
    #[must_use]
    pub fn report(&self) -> String {
        let shown = self
            .notes
            .iter()
            .filter(|note| note.class >= Class::Nearest);
        let mut lines: Vec<String> = shown.map(ToString::to_string).collect();
        let counts = Class::ALL.map(|class| format!("{} {}", self.count(class), class.sign()));
        let objects = self.generation.load_balancers.len() + self.generation.directors.len();
        lines.push(format!(
            "{}: {}",
            counted(objects, "object"),
            counts.join(", ")
        ));
        lines.join("\n") + "\n"
    }
}

/// Objects and notes of an importer at work.
#[derive(Debug, Default)]
struct Draft {
    balancers: Vec<Drafted>,
    director: Option<DirectorDocument>,
    notes: Vec<Note>,
    /// Names of load balancers, each with the number of its next namesake.
    names: HashMap<String, u32>,
}

/// A load balancer and where it came from.
#[derive(Debug)]
struct Drafted {
    document: LoadBalancerDocument,
    origin: Origin,
}

/// A line of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Origin {
    file: String,
    line: u64,
}

impl Origin {
    /// A file as a whole.
    fn whole(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            line: 0,
        }
    }
}

impl Draft {
    fn note(&mut self, origin: &Origin, class: Class, setting: &str, message: impl Into<String>) {
        self.notes.push(Note {
            file: origin.file.clone(),
            line: origin.line,
            class,
            setting: setting.to_owned(),
            message: message.into(),
        });
    }

    /// The settings of the one director.
    fn director(&mut self, name: &str) -> &mut DirectorSpec {
        let director = self.director.get_or_insert_with(|| DirectorDocument {
            api_version: ApiVersion::V1Alpha1,
            kind: DirectorKind::Director,
            metadata: Metadata {
                name: object_name(name),
                ..Metadata::default()
            },
            spec: DirectorSpec::default(),
        });
        &mut director.spec
    }

    /// A name that no other load balancer has.
    fn free_name(&mut self, wanted: &str) -> String {
        let wanted = object_name(wanted);
        let mut name = wanted.clone();
        while self.names.contains_key(&name) {
            let number = self.names.entry(wanted.clone()).or_insert(2);
            name = format!("{wanted}-{number}");
            *number += 1;
        }
        self.names.insert(name.clone(), 2);
        name
    }

    /// Checks the objects as files are.
    fn finish(mut self) -> Import {
        let mut generation = Generation::default();
        let balancers = std::mem::take(&mut self.balancers);
        for drafted in &balancers {
            let name = format!("LoadBalancer {}", drafted.document.metadata.name);
            let text = to_yaml(&drafted.document);
            let read = self.checked(&text, &name, &drafted.origin);
            generation.load_balancers.extend(read.load_balancers);
        }
        let origin = balancers
            .first()
            .map(|drafted| drafted.origin.clone())
            .unwrap_or_default();
        if let Some(director) = self.director.take() {
            let read = self.checked(&to_yaml(&director), "Director", &origin);
            generation.directors.extend(read.directors);
        }
        // Objects that are right alone may still claim the same virtual server.
        let text = generation.to_yaml();
        let is_right = self.notes.iter().all(|note| note.class != Class::Error);
        if is_right {
            self.checked(&text, "the objects together", &origin);
        }
        if self.notes.iter().any(|note| note.class == Class::Error) {
            generation = Generation::default();
        }
        self.notes.sort();
        Import {
            generation,
            notes: self.notes,
        }
    }

    fn checked(&mut self, text: &str, setting: &str, origin: &Origin) -> Generation {
        let file = File {
            name: "import.yaml",
            text,
        };
        match parse(&[file], &Already::default()) {
            Ok(generation) => {
                for warning in &generation.warnings {
                    let message = format!("{}: {}", warning.field, warning.message);
                    self.note(origin, Class::Nearest, setting, message);
                }
                generation
            }
            Err(problems) => {
                for problem in problems {
                    let message = format!("{}: {}", problem.field, problem.message);
                    self.note(origin, Class::Error, setting, message);
                }
                Generation::default()
            }
        }
    }
}

/// The steps of a check of a mail server that greets with `hello`.
fn smtp_steps(hello: String) -> Vec<StepDocument> {
    let step = |send: Option<String>, code: &str| StepDocument {
        send,
        expect: Some(smtp_reply(code)),
        ..StepDocument::default()
    };
    vec![
        step(None, "220"),
        step(Some(hello), "250"),
        step(Some(String::from("QUIT\r\n")), "221"),
    ]
}

/// A whole reply with a code, of any bytes, so that the next pattern begins at the next reply.
fn smtp_reply(code: &str) -> String {
    format!(r"(?-u)^(?:{code}-[^\n]*\n)*{code}(?: [^\n]*)?\r?\n")
}

/// A text as the name of an object: lower case, `-` for what a name cannot have.
fn object_name(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '-'
        }
    };
    let name: String = text.to_lowercase().chars().map(allowed).collect();
    let name = name.trim_matches(['-', '.']);
    let name: String = name.chars().take(200).collect();
    if name.is_empty() {
        String::from("imported")
    } else {
        name.trim_end_matches(['-', '.']).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_given_once_and_without_trying_all_before() {
        let mut draft = Draft::default();
        let names = ["a", "a-2", "A", "a", "a-2"].map(|wanted| draft.free_name(wanted));
        assert_eq!(names, ["a", "a-2", "a-3", "a-4", "a-2-2"]);
        let names: HashSet<String> = (0..200_000).map(|_| draft.free_name("b")).collect();
        assert_eq!(names.len(), 200_000);
    }
}
