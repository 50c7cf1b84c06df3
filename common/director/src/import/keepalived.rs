// SPDX-License-Identifier: Apache-2.0

//! keepalived.conf: its virtual servers, checkers and the global settings of its checker process.
//!
//! VRRP, tracking and BFD stay with keepalived, which can run for VRRP alone.

mod checker;
mod complete;
mod correct;
mod globals;
mod group;
mod server;
mod service;
mod statements;

use std::collections::HashMap;
use std::io;

use super::{Class, Draft, Import, Origin};
use crate::document::FrontendDocument;
use crate::generation::File;
use statements::Statement;

/// The files that match the pattern of an `include`: the names, with the texts or the reasons why they cannot be read.
/// The first argument is the name of the file that has the `include`, to whose directory the pattern is relative.
pub type Include<'a> = dyn Fn(&str, &str) -> Vec<(String, io::Result<String>)> + 'a;

/// Parameters of an import of keepalived.conf besides its text.
pub struct Options<'a> {
    /// The files that the `include` of a file names.
    pub include: &'a Include<'a>,
    /// keepalived's `--config-id`, which selects lines that begin with `@id`.
    pub config_id: Option<&'a str>,
    /// Name of the `Director` object, if the file has settings for one.
    pub director: &'a str,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("config_id", &self.config_id)
            .field("director", &self.director)
            .finish_non_exhaustive()
    }
}

/// Reads a keepalived.conf.
#[must_use]
pub fn import(file: File<'_>, options: &Options<'_>) -> Import {
    let mut draft = Draft::default();
    let statements = statements::read(&mut draft, file, options);
    let mut known = Known::default();
    for statement in &statements {
        match statement.name() {
            "virtual_server_group" => group::read(&mut draft, statement, &mut known),
            "track_file" | "vrrp_track_file" => globals::track_file(statement, &mut known),
            _ => {}
        }
    }
    let mut warned_of_vrrp = false;
    for statement in &statements {
        match statement.name() {
            "virtual_server" => service::read(&mut draft, statement, &known, options.director),
            "virtual_server_group" => {}
            "track_file" | "vrrp_track_file" => statement.note(&mut draft, Class::Same, ""),
            "global_defs" => globals::read(&mut draft, statement, options.director),
            name if is_vrrp(name) => {
                let message = if warned_of_vrrp {
                    "stays with keepalived".to_owned()
                } else {
                    format!("stays with keepalived: keepalived --vrrp -f {}", file.name)
                };
                warned_of_vrrp = true;
                statement.note(&mut draft, Class::LeftOut, message);
            }
            "net_namespace_ipvs" => {
                statement.note(
                    &mut draft,
                    Class::LeftOut,
                    "the agent's own namespace is used",
                );
            }
            _ => statement.note(&mut draft, Class::LeftOut, "unknown here"),
        }
    }
    draft.finish()
}

fn is_vrrp(name: &str) -> bool {
    ["vrrp_", "track_", "static_", "bfd_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Definitions that other blocks refer to.
#[derive(Debug, Default)]
struct Known {
    /// Frontends of groups, without a protocol.
    groups: HashMap<String, Vec<FrontendDocument>>,
    /// Files that are watched, by name.
    files: HashMap<String, String>,
}

impl Statement {
    fn note(&self, draft: &mut Draft, class: Class, message: impl Into<String>) {
        let origin = &self.origin;
        draft.note(origin, class, self.name(), message);
    }

    /// A problem with the statement's value.
    fn wrong(&self, draft: &mut Draft, expected: &str) {
        let given = self.words[1..].join(" ");
        self.note(
            draft,
            Class::Error,
            format!("{given:?}: expected {expected}"),
        );
    }
}

/// The place of a line.
fn origin(file: &str, line: u64) -> Origin {
    Origin {
        file: file.to_owned(),
        line,
    }
}
