// SPDX-License-Identifier: Apache-2.0

//! The problems found during a conversion.

use portolan_catalog::{FieldProblem, Reason};

#[derive(Debug, Default)]
pub(super) struct Problems(Vec<FieldProblem>);

impl Problems {
    pub(super) fn invalid(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.add(field, Reason::InvalidValue, message);
    }

    pub(super) fn add(
        &mut self,
        field: impl Into<String>,
        reason: Reason,
        message: impl Into<String>,
    ) {
        self.0.push(FieldProblem::new(field, reason, message));
    }

    /// The choice that a field's text makes; absent and empty make the first one, and so does,
    /// with a problem, any text that is not among the `choices`.
    pub(super) fn choose<T: Copy, const N: usize>(
        &mut self,
        field: &str,
        text: Option<&str>,
        choices: [(&str, T); N],
    ) -> T {
        let default = choices[0].1;
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return default;
        };
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return *choice;
        }
        let names = choices.map(|(name, _)| name).join(" or ");
        self.invalid(
            field,
            format!(
                "unknown value {text:?}: expected {names}; taken as {}",
                choices[0].0
            ),
        );
        default
    }

    pub(super) fn into_vec(self) -> Vec<FieldProblem> {
        self.0
    }
}
