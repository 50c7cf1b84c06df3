// SPDX-License-Identifier: Apache-2.0

//! Places of problems.

use portolan_director::Position;

/// Checks that a place is unknown, or a line of the text and a column of that line or right after it.
///
/// # Panics
/// If it is not.
pub(super) fn assert_within(at: Position, text: &str, problem: &dyn std::fmt::Display) {
    if at == Position::default() {
        return;
    }
    assert!(is_within(at, text), "not within the text: {problem}");
}

fn is_within(at: Position, text: &str) -> bool {
    let line = usize::try_from(at.line).ok();
    let line = line.and_then(|line| lines(text).nth(line.checked_sub(1)?));
    line.is_some_and(|line| (1..=line.chars().count() as u64 + 1).contains(&at.column))
}

/// The lines of a text. They end as in YAML: after a line feed, a carriage return, or both.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let (line, after) = match rest?.find(['\r', '\n']) {
            Some(end) => {
                let (line, after) = rest?.split_at(end);
                let after = after.strip_prefix("\r\n").unwrap_or_else(|| &after[1..]);
                (line, Some(after))
            }
            None => (rest?, None),
        };
        rest = after;
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_end_after_the_last_character_of_a_line() {
        let text = "äb\r\n\rc";
        assert_eq!(lines(text).collect::<Vec<_>>(), ["äb", "", "c"]);
        for (line, column, expected) in [
            (1, 3, true),
            (1, 4, false),
            (1, 0, false),
            (2, 1, true),
            (2, 2, false),
            (3, 2, true),
            (4, 1, false),
            (0, 1, false),
        ] {
            assert_eq!(
                is_within(Position { line, column }, text),
                expected,
                "{line}:{column}"
            );
        }
    }
}
