// SPDX-License-Identifier: Apache-2.0

//! ldirectord.cf (ldirectord 4.12): one load balancer for each `virtual`.

mod check;
mod real;
mod service;

use std::collections::HashMap;

use super::{Class, Draft, Import, Origin};
use crate::generation::File;

/// Parameters of an import of ldirectord.cf besides its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options<'a> {
    /// Whether a check that cannot be imported becomes one that always fails, with a warning.
    pub allow_partial: bool,
    /// Name of the `Director` object, if the file has settings for one.
    pub director: &'a str,
}

/// A line `NAME = VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    origin: Origin,
    name: String,
    value: String,
}

impl Setting {
    fn note(&self, draft: &mut Draft, class: Class, message: impl Into<String>) {
        draft.note(&self.origin, class, &self.name, message);
    }
}

/// Settings of a level by name; the last one counts.
type Settings = HashMap<String, String>;

/// Reads a ldirectord.cf.
#[must_use]
pub fn import(file: File<'_>, options: Options<'_>) -> Import {
    let mut draft = Draft::default();
    let mut globals: Vec<Setting> = Vec::new();
    let mut services: Vec<(Setting, Vec<Setting>)> = Vec::new();
    for (line, text) in (1..).zip(file.text.lines()) {
        let content = without_comment(text);
        if content.trim().is_empty() {
            continue;
        }
        let origin = Origin {
            file: file.name.to_owned(),
            line,
        };
        let is_indented = content.starts_with([' ', '\t']);
        let Some((name, value)) = content.split_once('=') else {
            let name = content.trim();
            let class = if name == "supervised" {
                Class::Ignored
            } else {
                Class::Error
            };
            draft.note(&origin, class, name, "");
            continue;
        };
        let setting = Setting {
            origin,
            name: name.trim().to_lowercase(),
            value: value.trim().to_owned(),
        };
        match (is_indented, services.last_mut()) {
            (true, Some((_, inner))) => inner.push(setting),
            (true, None) => setting.note(&mut draft, Class::Error, "expected under a virtual"),
            (false, _) if matches!(setting.name.as_str(), "virtual" | "virtual6") => {
                services.push((setting, Vec::new()));
            }
            (false, _) => globals.push(setting),
        }
    }
    let mut defaults = Settings::new();
    for setting in &globals {
        service::global(&mut draft, setting, &mut defaults, options);
    }
    for (service, settings) in &services {
        service::read(&mut draft, service, settings, &defaults, options);
    }
    draft.finish()
}

/// A line up to `#`, which quotes and a backslash protect.
fn without_comment(line: &str) -> &str {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            '#' if !is_quoted && !is_escaped => return &line[..at],
            '"' if !is_escaped => is_quoted = !is_quoted,
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    line
}
