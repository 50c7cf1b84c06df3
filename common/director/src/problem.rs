// SPDX-License-Identifier: Apache-2.0

//! Problems of a file, with their places.

use std::fmt;

/// A place in a file: line and column, both from 1. 0 stands for unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

/// One thing that is wrong: `FILE:LINE:COLUMN: FIELD: what is wrong: what is expected`.
///
/// The position is that of the field's value, of the key of an unknown field, and of the innermost
/// value around a field that is missing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file's name.
    pub file: String,
    /// The place in the file.
    pub at: Position,
    /// The path of the field, as in `spec.backends[1].port`; empty for the whole document.
    pub field: String,
    /// Description of the fault and of the expected value.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.at.line > 0 {
            write!(f, ":{}:{}", self.at.line, self.at.column)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The last line about files that are not applied; `in_force` says since when the present
/// configuration is, as in `2026-01-02T03:04:05Z`.
#[must_use]
pub fn not_applied(files: &str, errors: usize, in_force: Option<&str>) -> String {
    let errors = counted(errors, "error");
    match in_force {
        Some(since) => {
            format!("{files}: not applied: {errors}; the configuration of {since} stays in force")
        }
        None => format!("{files}: not applied: {errors}"),
    }
}

/// A number with its noun, as in `1 error` and `2 errors`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Words as in `a, b or c`.
pub(crate) fn alternatives(words: &[String]) -> String {
    match words {
        [] => String::from("nothing"),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_print_as_compilers_do() {
        let problem = Problem {
            file: String::from("lb.yaml"),
            at: Position { line: 9, column: 7 },
            field: String::from("spec.schedular"),
            message: String::from("unknown field: did you mean \"scheduler\"?"),
        };
        assert_eq!(
            problem.to_string(),
            "lb.yaml:9:7: spec.schedular: unknown field: did you mean \"scheduler\"?"
        );
        let whole = Problem {
            at: Position::default(),
            field: String::new(),
            message: String::from("empty"),
            ..problem
        };
        assert_eq!(whole.to_string(), "lb.yaml: empty");
    }

    #[test]
    fn the_last_line_says_what_stays_in_force() {
        assert_eq!(
            not_applied("lb.yaml", 6, Some("2026-01-02T03:04:05Z")),
            "lb.yaml: not applied: 6 errors; the configuration of 2026-01-02T03:04:05Z stays in force"
        );
        assert_eq!(
            not_applied("lb.yaml", 1, None),
            "lb.yaml: not applied: 1 error"
        );
    }
}
