// SPDX-License-Identifier: Apache-2.0

//! The documents of a file, split so that a broken one does not affect the others.

/// One YAML document, or a whole JSON file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Document<'t> {
    /// Its text, with the `---` that starts it.
    pub(super) text: &'t str,
    /// Number of lines of the file before it.
    pub(super) lines_before: u64,
    /// The line of the file where its content starts.
    pub(super) first_line: u64,
}

impl<'t> Document<'t> {
    /// A file that is one document.
    pub(super) fn whole(text: &'t str) -> Self {
        Self::after(0, text)
    }

    fn after(lines_before: u64, text: &'t str) -> Self {
        let content = (1..).zip(text.lines()).find(|(_, line)| !is_blank(line));
        Self {
            text,
            lines_before,
            first_line: lines_before + content.map_or(1, |(line, _)| line),
        }
    }
}

/// The documents of a YAML file. Those that hold nothing but comments and directives are left out.
///
/// `---` at the start of a line is a separator wherever it is: YAML allows it in no scalar.
pub(super) fn split(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut lines_before) = (0, 0);
    let mut offset = 0;
    for (line_number, line) in (0..).zip(text.split_inclusive('\n')) {
        if is_separator(line) && offset > start {
            documents.push(Document::after(lines_before, &text[start..offset]));
            (start, lines_before) = (offset, line_number);
        }
        offset += line.len();
    }
    documents.push(Document::after(lines_before, &text[start..]));
    documents.retain(|document| !is_blank(document.text));
    documents
}

fn is_separator(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_blank(text: &str) -> bool {
    text.lines().all(|line| {
        let content = if is_separator(line) { &line[3..] } else { line };
        let content = content.trim();
        content.is_empty() || content == "..." || content.starts_with(['#', '%'])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(text: &str) -> Vec<(&str, u64)> {
        split(text)
            .into_iter()
            .map(|document| (document.text, document.lines_before))
            .collect()
    }

    #[test]
    fn documents_start_at_separators_and_know_their_line() {
        assert_eq!(
            documents("a: 1\n---\nb: 2\n--- # c\nc: 3"),
            [("a: 1\n", 0), ("---\nb: 2\n", 1), ("--- # c\nc: 3", 3)]
        );
        assert_eq!(documents("a: 1\r\n---\r\nb: 2\r\n").len(), 2);
        let first_lines: Vec<_> = split("# x\na: 1\n---\nb: 2\n--- {c: 3}\n")
            .iter()
            .map(|document| document.first_line)
            .collect();
        assert_eq!(first_lines, [2, 4, 5]);
        assert_eq!(documents("--- {a: 1}\n"), [("--- {a: 1}\n", 0)]);
    }

    #[test]
    fn dashes_elsewhere_are_no_separators() {
        assert_eq!(documents("a: |\n  ---\n  b\n").len(), 1);
        assert_eq!(documents("---a: 1\n").len(), 1);
    }

    #[test]
    fn empty_documents_are_left_out() {
        assert_eq!(
            documents("# c\n---\n\n---\n%YAML 1.2\n---\na: 1\n---\n...\n").len(),
            1
        );
        assert!(documents("").is_empty());
    }
}
