// SPDX-License-Identifier: Apache-2.0

//! The difference of two texts, line by line.

/// Most pairs of lines that are compared with each other. Each one takes four bytes.
const PAIRS: usize = 4_000_000;

/// The lines of both texts, with `-` before those of the first one only, `+` before those of the second one
/// only, and a space before those of both. Long texts that differ from end to end have no common lines in between.
pub(crate) fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let (old, new) = (&old[..], &new[..]);
    // Most lines of long texts are the same: those at both ends are compared once each.
    let head = same(old.iter(), new.iter());
    let (first, old, new) = (&old[..head], &old[head..], &new[head..]);
    let tail = same(old.iter().rev(), new.iter().rev());
    let (old, last) = old.split_at(old.len() - tail);
    let (new, _) = new.split_at(new.len() - tail);
    let mut text = String::new();
    let mut push = |sign: char, line: &str| {
        text.push(sign);
        text.push_str(line);
        text.push('\n');
    };
    first.iter().for_each(|line| push(' ', line));
    if (old.len() + 1).saturating_mul(new.len() + 1) > PAIRS {
        old.iter().for_each(|line| push('-', line));
        new.iter().for_each(|line| push('+', line));
    } else {
        signed(old, new, &mut push);
    }
    last.iter().for_each(|line| push(' ', line));
    text
}

/// Number of lines that are the same up to the first ones that differ.
fn same<T: PartialEq>(old: impl Iterator<Item = T>, new: impl Iterator<Item = T>) -> usize {
    old.zip(new).take_while(|(old, new)| old == new).count()
}

/// The lines of both, with as many common ones as there are.
fn signed(old: &[&str], new: &[&str], push: &mut impl FnMut(char, &str)) {
    let common = common(old, new);
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            push(' ', old[i]);
            (i, j) = (i + 1, j + 1);
        } else if i < old.len() && (j == new.len() || common[i + 1][j] >= common[i][j + 1]) {
            push('-', old[i]);
            i += 1;
        } else {
            push('+', new[j]);
            j += 1;
        }
    }
}

/// The length of the longest common sequence of the lines from each pair of lines on.
fn common(old: &[&str], new: &[&str]) -> Vec<Vec<u32>> {
    let mut length = vec![vec![0; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            length[i][j] = if old[i] == new[j] {
                length[i + 1][j + 1] + 1
            } else {
                length[i + 1][j].max(length[i][j + 1])
            };
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_text_only_are_signed() {
        assert_eq!(
            difference("a\nb\nc\n", "a\nx\nc\nd\n"),
            " a\n-b\n+x\n c\n+d\n"
        );
        assert_eq!(difference("", "a\n"), "+a\n");
        assert_eq!(difference("a\na\n", "a\n"), " a\n-a\n");
        assert_eq!(difference("a\n", "a\n"), " a\n");
    }

    #[test]
    fn long_texts_are_compared_where_they_differ() {
        let lines = |from: u32, to: u32| (from..to).map(|i| format!("line {i}\n"));
        let old: String = lines(0, 100_000).collect();
        let new = old.replacen("line 50000\n", "other\n", 1);
        let both = |from, to| {
            let signed = lines(from, to).map(|line| format!(" {line}"));
            signed.collect::<String>()
        };
        let expected = [
            both(0, 50_000),
            "-line 50000\n+other\n".to_owned(),
            both(50_001, 100_000),
        ];
        // Not assert_eq, which would print both.
        assert!(difference(&old, &new) == expected.concat());
    }

    #[test]
    fn long_texts_without_equal_ends_are_written_one_after_the_other() {
        let lines = |sign: &str, word: &str| -> String {
            let line = |i| format!("{sign}{word} {i}\n");
            (0..3000).map(line).collect()
        };
        let (old, new) = (lines("", "old"), lines("", "new"));
        let text = difference(
            &format!("first\n{old}last\n"),
            &format!("first\n{new}last\n"),
        );
        let (old, new) = (lines("-", "old"), lines("+", "new"));
        assert!(text == format!(" first\n{old}{new} last\n"));
    }
}
