// SPDX-License-Identifier: Apache-2.0

//! YAML and JSON, and where in the file something is.

use std::cell::OnceCell;

use serde_json::Value;

use super::document::Document;
use super::locate::Shape;

/// Line and column, from 1.
pub(super) type Position = (u64, u64);

/// A syntax error in YAML or JSON, with its place in the document.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) position: Option<Position>,
    pub(super) message: String,
}

pub(super) fn json(text: &str) -> Result<Value, SyntaxError> {
    serde_json::from_str(text).map_err(|error| SyntaxError {
        position: Some((error.line() as u64, error.column() as u64)),
        message: without_position(&error.to_string()),
    })
}

pub(super) fn yaml(text: &str) -> Result<Value, SyntaxError> {
    serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|error| SyntaxError {
        position: error.location().map(|at| (at.line(), at.column())),
        message: without_position(
            &error.render_with_formatter(&serde_saphyr::UserMessageFormatter),
        ),
    })
}

/// Kubernetes' reading of YAML, without limits on size: 10,000 Services in one document are no
/// attack. The limits on nesting and aliases stay.
fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
        },
    }
}

/// Both parsers end their messages with a position, which is wrong in a file of many documents.
fn without_position(message: &str) -> String {
    message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message)
        .to_owned()
}

/// A document whose fields can be found.
#[derive(Debug)]
pub(super) struct Located<'t> {
    pub(super) document: Document<'t>,
    shape: OnceCell<Option<Shape>>,
}

impl<'t> Located<'t> {
    pub(super) fn new(document: Document<'t>) -> Self {
        Self {
            document,
            shape: OnceCell::new(),
        }
    }

    /// The place of a field in the file. Costs a second parse, and is used for problems only.
    pub(super) fn find(&self, field: &str) -> Option<Position> {
        let parse = || serde_saphyr::from_str_with_options(self.document.text, yaml_options()).ok();
        let shape = self.shape.get_or_init(parse).as_ref()?;
        self.in_file(shape.locate(field))
    }

    /// Where in the file a position of the document is.
    pub(super) fn in_file(&self, position: Option<Position>) -> Option<Position> {
        position.map(|(line, column)| (line + self.document.lines_before, column))
    }
}
