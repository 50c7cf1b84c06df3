// SPDX-License-Identifier: Apache-2.0

//! Files on disk: good ones, and broken ones with all their errors.
//!
//! A broken file ends with a comment `# structure` or `# meaning`, which says whether its JSON
//! schema finds it too, and one comment per error, in order. `REVIEW=1` writes these comments
//! anew, to be read before they are committed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use portolan_director::{Already, File, Generation, parse};

/// The files of a directory, sorted.
fn files(directory: &str) -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(directory);
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

fn parsed(text: &str) -> Result<Generation, Vec<String>> {
    let file = File {
        name: "lb.yaml",
        text,
    };
    parse(&[file], &Already::default())
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

/// A broken file's text, its class, and the errors in its comments.
fn broken(path: &Path) -> (String, String, Vec<String>) {
    let text = fs::read_to_string(path).unwrap();
    let end = text
        .find("# structure\n")
        .or_else(|| text.find("# meaning\n"))
        .unwrap();
    let mut comments = text[end..].lines().map(|line| line[2..].to_owned());
    let class = comments.next().unwrap();
    (text[..end].to_owned(), class, comments.collect())
}

#[test]
fn broken_files_have_exactly_these_errors() {
    let paths = files("broken");
    assert!(paths.len() >= 60);
    for path in paths {
        let (text, class, expected) = broken(&path);
        let found = parsed(&text).expect_err(&path.display().to_string());
        if std::env::var_os("REVIEW").is_some() {
            let mut renewed = format!("{text}# {class}\n");
            for line in &found {
                let _ = writeln!(renewed, "# {line}");
            }
            fs::write(&path, renewed).unwrap();
            continue;
        }
        assert_eq!(found, expected, "{}", path.display());
    }
}

#[test]
fn good_files_survive_writing_and_reading() {
    for path in files("good") {
        let text = fs::read_to_string(&path).unwrap();
        let mut first = parsed(&text).unwrap();
        let written = first.to_yaml();
        let again = parsed(&written).unwrap_or_else(|errors| panic!("{errors:#?}\n{written}"));
        first.not_ours.clear();
        first.warnings.clear();
        let again = Generation {
            warnings: Vec::new(),
            ..again
        };
        assert_eq!(again, first, "{written}");
        assert_eq!(again.to_yaml(), written);
    }
}
