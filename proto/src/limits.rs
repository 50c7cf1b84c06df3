// SPDX-License-Identifier: Apache-2.0

//! Bounds that both sides of a stream keep.

use prost::Message;

/// Approximate size of a frame with several encoded records, in bytes. A larger record has a frame of
/// its own. HTTP/2 sends such a frame in one piece if the agent allows it, which makes snapshots cheap.
pub const FRAME_BYTES: usize = 64 * 1024;

/// Maximum size of an agent's message, in bytes.
pub const MAX_AGENT_MESSAGE_BYTES: usize = 64 * 1024;

/// Maximum size of a frame, in bytes: room for one record with some hundred thousand destinations.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// Maximum size of a message of an edge controller, in bytes.
pub const MAX_EDGE_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Maximum number of listed refusals or errors in a report.
pub const MAX_PROBLEMS: usize = 64;

/// Maximum length of a text about one problem, in bytes.
pub const MAX_PROBLEM_BYTES: usize = 256;

/// Maximum encoded size of the problems of one report, in bytes: leaves enough of
/// [`MAX_AGENT_MESSAGE_BYTES`] for the rest.
const PROBLEMS_BYTES: usize = 48 * 1024;

/// The first problems that fit a report, and the number of all.
pub fn fitting<M: Message>(problems: impl IntoIterator<Item = M>) -> (Vec<M>, u32) {
    let mut listed = Vec::new();
    let mut bytes = 0;
    let mut total = 0_u32;
    for problem in problems {
        total = total.saturating_add(1);
        bytes += problem.encoded_len() + 8;
        if listed.len() < MAX_PROBLEMS && bytes <= PROBLEMS_BYTES {
            listed.push(problem);
        }
    }
    (listed, total)
}

/// Cuts a text to [`MAX_PROBLEM_BYTES`], between characters.
#[must_use]
pub fn problem_text(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_PROBLEM_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn refusal(length: usize) -> v1::Refusal {
        v1::Refusal {
            key: None,
            reason: "x".repeat(length),
        }
    }

    #[test]
    fn a_report_lists_some_and_counts_all() {
        let (listed, total) = fitting((0..1000).map(|_| refusal(100)));
        assert_eq!((listed.len(), total), (MAX_PROBLEMS, 1000));
    }

    #[test]
    fn a_report_fits_a_message_whatever_the_problems_are() {
        for length in [0, 1_000, 10_000, 100_000] {
            let (refused, refused_total) = fitting((0..100).map(|_| refusal(length)));
            let report = v1::Received {
                revision: u64::MAX,
                refused,
                refused_total,
                ..v1::Received::default()
            };
            assert!(report.encoded_len() + 16 < MAX_AGENT_MESSAGE_BYTES);
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let cut = problem_text("ä".repeat(MAX_PROBLEM_BYTES));
        assert_eq!(cut.len(), MAX_PROBLEM_BYTES);
        assert_eq!(problem_text(format!("x{cut}")).len(), MAX_PROBLEM_BYTES - 1);
    }
}
