// SPDX-License-Identifier: Apache-2.0

//! The difference of two texts, line by line.

/// The lines of both texts, with `-` before those of the first one only, `+` before those of the second one
/// only, and a space before those of both.
pub(crate) fn difference(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let common = common(&old, &new);
    let (mut i, mut j) = (0, 0);
    let mut text = String::new();
    let mut push = |sign: char, line: &str| {
        text.push(sign);
        text.push_str(line);
        text.push('\n');
    };
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
    text
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
}
