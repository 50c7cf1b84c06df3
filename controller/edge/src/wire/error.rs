// SPDX-License-Identifier: Apache-2.0

//! Errors of decoding.

/// An object that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct WireError {
    /// The field, by its name in the `.proto` file.
    pub field: &'static str,
    /// Reason.
    pub why: String,
}

impl WireError {
    pub(crate) fn new(field: &'static str, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { field, why }
    }

    pub(crate) fn range(field: &'static str, number: u32) -> Self {
        Self::new(field, format!("{number} is out of range"))
    }
}
