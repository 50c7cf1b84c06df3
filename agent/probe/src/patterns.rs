// SPDX-License-Identifier: Apache-2.0

//! Regular expressions, each compiled once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use regex::bytes::Regex;

use crate::fault::{Checked, Stop};

/// More patterns than any configuration has; then all are compiled again.
const MAX: usize = 4_096;

#[derive(Debug, Default)]
pub(crate) struct Patterns(Mutex<HashMap<String, Regex>>);

impl Patterns {
    /// The compiled form of a pattern.
    pub(crate) fn get(&self, pattern: &str) -> Checked<Regex> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regex) = known.get(pattern) {
            return Ok(regex.clone());
        }
        let bad = |error| Stop::ours(format_args!("pattern {pattern:?}: {error}"));
        let regex = Regex::new(pattern).map_err(bad)?;
        if known.len() >= MAX {
            known.clear();
        }
        known.insert(pattern.to_owned(), regex.clone());
        Ok(regex)
    }
}
