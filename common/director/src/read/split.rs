// SPDX-License-Identifier: Apache-2.0

//! The documents of a file, each parsed by itself: broken YAML in one hides no problem in another.

use super::line::lines;
use super::node::{Node, SyntaxError};
use crate::problem::Position;

/// The notation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Any number of YAML documents.
    Yaml,
    /// One JSON value.
    Json,
}

impl Format {
    /// By the end of the file's name: JSON for `.json`, else YAML.
    #[must_use]
    pub fn of(file: &str) -> Self {
        let end = file.rsplit_once('.').map_or("", |(_, end)| end);
        if end.eq_ignore_ascii_case("json") {
            Self::Json
        } else {
            Self::Yaml
        }
    }
}

/// The text of one document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'t> {
    pub(crate) text: &'t str,
    lines_before: u64,
    format: Format,
}

impl Piece<'_> {
    /// Parses the document.
    pub(crate) fn parse(self) -> Result<Node, SyntaxError> {
        let Self {
            text, lines_before, ..
        } = self;
        match self.format {
            Format::Json => Node::json(text),
            Format::Yaml => {
                let moved = |at: &mut Position| at.line += lines_before;
                Node::yaml(text)
                    .map(|node| node.moved(&moved))
                    .map_err(|error| error.moved(lines_before))
            }
        }
    }
}

/// The documents of a text, without empty ones.
#[must_use]
pub fn documents(text: &str, format: Format) -> Vec<Result<Node, SyntaxError>> {
    split(text, format).into_iter().map(Piece::parse).collect()
}

/// The texts of the documents of a text, without empty ones.
pub(crate) fn split(text: &str, format: Format) -> Vec<Piece<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let pieces = match format {
        Format::Json => vec![(0, text)],
        Format::Yaml => pieces(text),
    };
    let piece = |(lines_before, text)| Piece {
        text,
        lines_before,
        format,
    };
    pieces.into_iter().map(piece).collect()
}

/// The texts of the documents, each with the number of lines before it. `---` at the start of a
/// line separates wherever it is, because no scalar may have it there.
fn pieces(text: &str) -> Vec<(u64, &str)> {
    let mut pieces = Vec::new();
    let (mut start, mut lines_before, mut offset) = (0, 0, 0);
    for (line_number, line) in (0..).zip(lines(text)) {
        if is_separator(line) && offset > start {
            pieces.push((lines_before, &text[start..offset]));
            (start, lines_before) = (offset, line_number);
        }
        offset += line.len();
    }
    pieces.push((lines_before, &text[start..]));
    pieces.retain(|(_, piece)| !is_blank(piece));
    pieces
}

fn is_separator(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_blank(piece: &str) -> bool {
    lines(piece).all(|line| {
        let content = if is_separator(line) { &line[3..] } else { line };
        let content = content.trim();
        content.is_empty() || content == "..." || content.starts_with(['#', '%'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_know_their_line() {
        let found: Vec<_> = documents("# x\na: 1\n---\nb: 2\n--- {c: 3}\n", Format::Yaml)
            .into_iter()
            .map(|document| document.unwrap().get("a").is_some())
            .collect();
        assert_eq!(found, [true, false, false]);
        let second = documents("a: 1\n---\nb:\n  c: 2\n", Format::Yaml)
            .remove(1)
            .unwrap();
        assert_eq!(second.locate("b.c"), Position { line: 4, column: 6 });
    }

    #[test]
    fn carriage_returns_end_lines_as_in_yaml() {
        let found = documents("# x\ra: 1\r\n---\rb:\r  c: 2\r", Format::Yaml);
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[0].locate("a"), Position { line: 2, column: 4 });
        assert_eq!(found[1].locate("b.c"), Position { line: 5, column: 6 });
    }

    #[test]
    fn a_broken_document_leaves_the_others_alone() {
        let found = documents("a: [1\n---\nb: 2\n---\nc: }\n", Format::Yaml);
        assert_eq!(
            found.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [false, true, false]
        );
        assert_eq!(found[2].as_ref().unwrap_err().at.line, 5);
    }

    #[test]
    fn comments_alone_are_no_document() {
        assert!(documents("# c\n---\n\n---\n...\n", Format::Yaml).is_empty());
        assert_eq!(documents("a: |\n  ---\n  b\n", Format::Yaml).len(), 1);
    }

    #[test]
    fn columns_of_broken_json_are_characters_from_1() {
        for (text, line, column) in [
            ("{\"ä\": 1, \"öü\": x}", 1, 16),
            ("{\n  \"ä\": 1,\n", 3, 1),
            ("{\r \"a\": 1,\r x}", 3, 2),
            ("{\"a", 1, 3),
            ("", 1, 1),
        ] {
            let error = documents(text, Format::Json).remove(0).unwrap_err();
            assert_eq!(error.at, Position { line, column }, "{text:?}");
        }
    }
}
