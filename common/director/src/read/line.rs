// SPDX-License-Identifier: Apache-2.0

//! Lines as YAML has them.

use crate::problem::Position;

/// The lines of a text with their ends: a line feed, a carriage return, or both.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = match rest.find(['\n', '\r']) {
            Some(at) if rest[at..].starts_with("\r\n") => at + 2,
            Some(at) => at + 1,
            None => rest.len(),
        };
        let (line, after) = rest.split_at(end);
        rest = after;
        (!line.is_empty()).then_some(line)
    })
}

/// The place of the last character that begins before a byte, or of the next line if that character
/// ends one.
pub(super) fn place(text: &str, byte: usize) -> Position {
    let read = text
        .char_indices()
        .take_while(|(start, _)| *start < byte)
        .last()
        .map_or("", |(start, c)| &text[..start + c.len_utf8()]);
    let last = lines(read).last();
    let last = last.filter(|line| !line.ends_with(['\n', '\r']));
    Position {
        line: (lines(read).count() + usize::from(last.is_none())) as u64,
        column: last.map_or(1, |line| line.chars().count()) as u64,
    }
}
