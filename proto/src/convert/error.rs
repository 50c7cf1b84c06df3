// SPDX-License-Identifier: Apache-2.0

//! Errors of decoding.

use std::fmt;

/// A message that breaks a rule of the protocol, or that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {kind}")]
pub struct DecodeError {
    /// The field, by its name in the `.proto` file.
    pub field: &'static str,
    /// Kind of the error.
    pub kind: DecodeErrorKind,
}

/// Kind of an error of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecodeErrorKind {
    /// A required field is absent.
    Missing,
    /// A number without a name in this version.
    Unknown(i32),
    /// A list or a byte string with more or fewer elements than it must have.
    Length {
        /// Required number of elements.
        expected: usize,
        /// Actual number of elements.
        got: usize,
    },
    /// A number that is too large, or an invalid zero.
    Range(u32),
    /// A list that is not in ascending order, or has duplicates.
    Unsorted,
    /// An address of the other family.
    Family,
    /// A name of an absent or repeated element.
    Absent,
    /// JSON of another form; the parser's error.
    Json(String),
    /// A patch of a load balancer's record, which has columns that a patch does not.
    Balanced,
}

impl DecodeError {
    pub(crate) fn new(field: &'static str, kind: DecodeErrorKind) -> Self {
        Self { field, kind }
    }

    pub(crate) fn length(field: &'static str, expected: usize, got: usize) -> Self {
        Self::new(field, DecodeErrorKind::Length { expected, got })
    }
}

impl fmt::Display for DecodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("missing"),
            Self::Unknown(number) => write!(f, "unknown value {number}"),
            Self::Length { expected, got } => write!(f, "{got} elements instead of {expected}"),
            Self::Range(number) => write!(f, "{number} is out of range"),
            Self::Unsorted => f.write_str("not sorted, or with duplicates"),
            Self::Family => f.write_str("address of the other family"),
            Self::Absent => f.write_str("names an absent element"),
            Self::Json(error) => f.write_str(error),
            Self::Balanced => f.write_str("the record of a load balancer"),
        }
    }
}
