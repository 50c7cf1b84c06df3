// SPDX-License-Identifier: Apache-2.0

//! Findings of conversions.

use crate::read::Path;

/// Something that is wrong with a field, which has no place yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) field: String,
    pub(crate) message: String,
}

/// All findings of one document.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) errors: Vec<Finding>,
    pub(crate) warnings: Vec<Finding>,
    /// Fields whose structure is wrong, and which are left out of the document therefore.
    left_out: Vec<String>,
}

impl Findings {
    /// For a document without these fields.
    pub(crate) fn without(left_out: Vec<String>) -> Self {
        Self {
            left_out,
            ..Self::default()
        }
    }

    /// Returns `true` if a field is missing or wrong in part, as far as known.
    pub(crate) fn is_broken(&self, field: &str) -> bool {
        let errors = self.errors.iter().map(|finding| finding.field.as_str());
        let left_out = self.left_out.iter().map(String::as_str);
        left_out
            .chain(errors)
            .any(|broken| is_within(broken, field))
    }

    /// Returns `true` if the document has all its fields, and no errors.
    pub(crate) fn is_whole(&self) -> bool {
        self.left_out.is_empty() && self.errors.is_empty()
    }

    pub(crate) fn error(&mut self, path: &Path, message: impl Into<String>) {
        if let Some(finding) = self.finding(path, message) {
            self.errors.push(finding);
        }
    }

    pub(crate) fn warning(&mut self, path: &Path, message: impl Into<String>) {
        if let Some(finding) = self.finding(path, message) {
            self.warnings.push(finding);
        }
    }

    /// A finding, unless it only follows from a field that was left out.
    fn finding(&self, path: &Path, message: impl Into<String>) -> Option<Finding> {
        let field = path.as_str();
        let follows = |broken: &String| is_within(broken, field) || is_within(field, broken);
        if self.left_out.iter().any(follows) {
            return None;
        }
        Some(Finding {
            field: field.to_owned(),
            message: message.into(),
        })
    }
}

/// Returns `true` if a field is another one or a part of it.
fn is_within(field: &str, outer: &str) -> bool {
    field
        .strip_prefix(outer)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_a_field_left_out_is_no_finding() {
        let path = |names: &[&str]| {
            names
                .iter()
                .fold(Path::default(), |path, name| path.field(name))
        };
        let mut findings = Findings::without(vec![String::from("spec.a.b")]);
        for names in [
            &["spec", "a"][..],
            &["spec", "a", "b"],
            &["spec", "a", "b", "c"],
        ] {
            findings.error(&path(names), "x");
        }
        assert!(findings.errors.is_empty());
        findings.error(&path(&["spec", "a", "bc"]), "x");
        assert_eq!(findings.errors.len(), 1);
        assert!(findings.is_broken("spec.a"));
        assert!(findings.is_broken("spec.a.bc"));
        assert!(!findings.is_broken("spec.b"));
    }
}
