// SPDX-License-Identifier: Apache-2.0

//! Paths of fields.

use std::fmt::Write as _;

/// The path of a field, as in `spec.backends[1].port`.
#[derive(Debug, Clone, Default)]
pub struct Path(String);

impl Path {
    /// A field of the value here.
    #[must_use]
    pub fn field(&self, name: &str) -> Self {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-<".contains(c);
        let path = if !name.is_empty() && name.chars().all(plain) {
            let dot = if self.0.is_empty() { "" } else { "." };
            format!("{}{dot}{name}", self.0)
        } else {
            format!("{}[{name}]", self.0)
        };
        Self(path)
    }

    /// An item of the list here.
    #[must_use]
    pub fn item(&self, index: usize) -> Self {
        let mut path = self.0.clone();
        let _ = write!(path, "[{index}]");
        Self(path)
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
