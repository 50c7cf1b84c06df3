// SPDX-License-Identifier: Apache-2.0

//! The commands of `docs/migration/kube-proxy.md`, as they stand there.

use std::fs;
use std::path::Path;

/// The guide.
pub(crate) struct Guide(String);

impl Guide {
    pub(crate) fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/migration/kube-proxy.md");
        Self(fs::read_to_string(file).unwrap())
    }

    /// The commands after the comment that begins with these words, up to the next comment.
    ///
    /// # Panics
    /// If there is not exactly one such comment, or no command after it.
    pub(crate) fn commands(&self, comment: &str) -> String {
        let found = blocks(&self.0).flat_map(sections);
        let found = found.filter(|(title, _)| {
            let rest = title.strip_prefix(comment);
            rest.is_some_and(|rest| rest.starts_with(['.', ':', ',']))
        });
        let found: Vec<_> = found.collect();
        let [(_, commands)] = &found[..] else {
            panic!(
                "{} sections of the guide are called {comment:?}",
                found.len()
            );
        };
        assert!(!commands.is_empty(), "{comment:?} has no command");
        commands.clone()
    }
}

/// The shell blocks of a page.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    let after = page.split("\n```sh\n").skip(1);
    after.filter_map(|rest| Some(rest.split_once("\n```")?.0))
}

/// The comments of a block, each with the commands after it.
fn sections(block: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("# "), sections.last_mut()) {
            (Some(more), Some((title, commands))) if commands.is_empty() => {
                *title = format!("{title} {more}");
            }
            (Some(title), _) => sections.push((title.to_owned(), String::new())),
            (None, Some((_, commands))) => *commands += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    sections
}

#[test]
fn commands_are_those_between_two_comments() {
    let page = "text\n```sh\n# Step 1: long,\n# in two lines.\na b \\\n  c\nd\n# Step 10.\ne\n```\n\n```sh\n# Back.\nf\n```\n";
    let guide = Guide(page.to_owned());
    assert_eq!(guide.commands("Step 1"), "a b \\\n  c\nd\n");
    assert_eq!(guide.commands("Step 10"), "e\n");
    assert_eq!(guide.commands("Back"), "f\n");
}

#[test]
fn nodes_are_checked_with_the_values_of_the_migration() {
    let guide = Guide::read();
    let values = guide.commands("Step 0");
    assert!(values.ends_with("> values.yaml\n"), "{values}");
    let check = guide.commands("Step 1");
    for part in ["agent.prepare.checkOnly=true", "-f values.yaml"] {
        assert!(check.contains(part), "{check}");
    }
}
