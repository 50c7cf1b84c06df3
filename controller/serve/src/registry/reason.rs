// SPDX-License-Identifier: Apache-2.0

//! Classification of an agent's refusals of records.

use super::RecordProblem;

impl RecordProblem {
    /// All values of [`reason`](Self::reason).
    pub const REASONS: [&str; 8] = [
        "missing", "unknown", "length", "range", "unsorted", "family", "base", "other",
    ];

    /// The class of the refusal, one of [`REASONS`](Self::REASONS). It is derived from the agent's
    /// text, which may differ between versions. Unrecognized text maps to `other`, so that agents
    /// cannot make up labels of metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        let has = |text| self.message.contains(text);
        match () {
            () if has("elements instead of") => "length",
            () if has("is out of range") => "range",
            () if has("not sorted") => "unsorted",
            () if has("of the other family") => "family",
            () if has("is not what we have") => "base",
            () if has("unknown") => "unknown",
            () if has(": missing") => "missing",
            () => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_proto::convert::{DecodeError, DecodeErrorKind};

    use super::*;

    fn reason(message: String) -> &'static str {
        let record = None;
        RecordProblem { record, message }.reason()
    }

    #[test]
    fn all_problems_of_our_agents_have_a_reason() {
        let length = DecodeErrorKind::Length {
            expected: 1,
            got: 2,
        };
        for (kind, wanted) in [
            (DecodeErrorKind::Missing, "missing"),
            (DecodeErrorKind::Unknown(7), "unknown"),
            (length, "length"),
            (DecodeErrorKind::Range(0), "range"),
            (DecodeErrorKind::Unsorted, "unsorted"),
            (DecodeErrorKind::Family, "family"),
        ] {
            let error = DecodeError {
                field: "frontends",
                kind,
            };
            for message in [
                format!("refused: {error}"),
                format!("the node's own lists: refused: {error}"),
            ] {
                assert_eq!(reason(message), wanted);
            }
            assert!(RecordProblem::REASONS.contains(&wanted));
        }
        let left_out = "frontend 0 left out: unknown kind 9";
        assert_eq!(reason(left_out.to_owned()), "unknown");
        assert_eq!(reason("a newer agent's words".to_owned()), "other");
    }
}
