// SPDX-License-Identifier: Apache-2.0

//! Checks of the documentation: links, the table of contents, and the sizes that readers rely on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Documents at the root of the repository.
const AT_ROOT: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
];

/// The limit of the README's length, in lines.
const README_LINES: usize = 150;
/// The limit of an endpoint's path through the code, in files.
const SPINE_FILES: usize = 16;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages below a directory.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|it| it == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The lines of a page outside its code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// The targets of the links of a page, without those of the web.
fn links(text: &str) -> Vec<String> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    let targets = targets.map(|(target, _)| target.to_owned());
    targets
        .filter(|target| !target.starts_with("http"))
        .collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
        _ => None,
    };
    titles
        .map(|title| title.chars().filter_map(kept).collect())
        .collect()
}

/// The reason why a link of a page is broken, if it is.
fn broken(page: &Path, text: &str, link: &str) -> Option<String> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => page.parent()?.join(file),
    };
    if !target.exists() {
        return Some(format!("{}: {link}: no such file", page.display()));
    }
    let is_known = anchor.is_empty()
        || (file.is_empty() && anchors(text).contains(anchor))
        || (!file.is_empty() && anchors(&read(&target)).contains(anchor));
    (!is_known).then(|| format!("{}: {link}: no such heading", page.display()))
}

#[test]
fn links_lead_somewhere() {
    let mut all: Vec<PathBuf> = AT_ROOT.map(|name| root().join(name)).into();
    all.extend(pages(&root().join("docs")));
    let mut found = Vec::new();
    let mut count = 0;
    for page in &all {
        let text = read(page);
        for link in links(&text) {
            count += 1;
            found.extend(broken(page, &text, &link));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(count > 80, "{count} links: the search for links is broken");
}

#[test]
fn links_of_the_book_stay_in_the_book() {
    let docs = root().join("docs").canonicalize().unwrap();
    for page in pages(&docs) {
        for link in links(&read(&page)) {
            let file = link.split('#').next().unwrap_or_default();
            let target = page.parent().unwrap().join(file);
            let target = target.canonicalize().unwrap_or_default();
            assert!(target.starts_with(&docs), "{}: {link}", page.display());
        }
    }
}

#[test]
fn the_table_of_contents_has_every_page() {
    let docs = root().join("docs");
    let summary = docs.join("SUMMARY.md");
    let listed: BTreeSet<PathBuf> = links(&read(&summary))
        .iter()
        .map(|link| docs.join(link))
        .collect();
    let existing = pages(&docs).into_iter().filter(|page| *page != summary);
    assert_eq!(listed, existing.collect());
}

/// The files and directories of the repository that a page names as code, without those that a build makes.
fn paths(text: &str) -> Vec<String> {
    let spans = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    let words = spans.filter_map(|span| span.split_whitespace().next());
    let is_ours = |path: &&str| {
        path.split_once('/')
            .is_some_and(|(first, _)| first != "target" && root().join(first).is_dir())
    };
    words.filter(is_ours).map(ToOwned::to_owned).collect()
}

#[test]
fn files_that_the_lists_of_changes_name_exist() {
    let found = paths(&read(&root().join("CONTRIBUTING.md")));
    let missing: Vec<_> = found
        .iter()
        .filter(|path| !root().join(path).exists())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(
        found.len() > 50,
        "{}: the search for paths is broken",
        found.len()
    );
}

#[test]
fn the_readme_is_short() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines <= README_LINES, "{lines} lines");
}

#[test]
fn one_endpoint_can_be_followed_through_few_files() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let (_, section) = text.split_once("## Follow one endpoint").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let files: Vec<_> = links(section);
    assert!((8..=SPINE_FILES).contains(&files.len()), "{files:?}");
    let sources = files
        .iter()
        .all(|file| file.ends_with(".rs") || file.ends_with(".proto"));
    assert!(sources, "{files:?}");
}
