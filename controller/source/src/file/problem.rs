// SPDX-License-Identifier: Apache-2.0

//! Problems with files.

use std::fmt;
use std::fmt::Write as _;
use std::path::PathBuf;

use portolan_catalog::{FieldProblem, ObjectRef, Reason};

use super::syntax::Position;

/// One thing that is wrong with a file: `file:line:column: field: message`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileProblem {
    /// The file, or the directory.
    pub file: PathBuf,
    /// The line, from 1, if one is to blame.
    pub line: Option<u64>,
    /// The column, from 1, if one is to blame.
    pub column: Option<u64>,
    /// The path of the field, as in `items[3].spec.ports[0].port`; empty if no field is to blame.
    pub field: String,
    /// The description.
    pub message: String,
}

/// A problem, and the object that it is a problem of, if known.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) object: Option<ObjectRef>,
    pub(super) problem: FileProblem,
}

impl FileProblem {
    pub(crate) fn new(
        file: impl Into<PathBuf>,
        position: Option<Position>,
        field: String,
        message: impl Into<String>,
    ) -> Self {
        let (line, column) = position.unzip();
        Self {
            file: file.into(),
            line,
            column,
            field,
            message: message.into(),
        }
    }

    /// Returns `true` if another problem is in the same line of the same file.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        self.line.is_some() && (&self.file, self.line) == (&other.file, other.line)
    }

    /// `file:line:column`.
    fn place(&self) -> String {
        let mut place = self.file.display().to_string();
        for number in [self.line, self.column].into_iter().flatten() {
            let _ = write!(place, ":{number}");
        }
        place
    }

    /// The same as a problem of the object, with the place at the end of its message.
    pub(super) fn of_object(&self, reason: Reason) -> FieldProblem {
        let message = format!("{} ({})", self.message, self.place());
        FieldProblem::new(self.field.clone(), reason, message)
    }
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place())?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}
