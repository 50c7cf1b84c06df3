// SPDX-License-Identifier: Apache-2.0

//! References of flags and metrics, generated from the code; a dependency of tests alone.
//!
//! A test makes a page and passes it to [`compare`], which fails if the page in `docs/reference` differs,
//! or writes it if the environment has `UPDATE_REFERENCE`.

#![forbid(unsafe_code)]

mod flags;
mod metrics;
pub mod samples;

use std::fs;
use std::path::Path;

pub use flags::flags;
pub use metrics::metrics;

/// Compares a page with the file of that name in `docs/reference`.
///
/// # Panics
/// If they differ, or if the file cannot be written.
pub fn compare(file: &str, title: &str, body: &str) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let path = directory.join(file);
    let note = "Generated from the code by `make reference`.";
    let page = format!("# {title}\n\n{note}\n\n{}\n", body.trim());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        fs::write(&path, &page).expect("the reference can be written");
    }
    let published = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        published == page,
        "docs/reference/{file} is stale: run `make reference`"
    );
}

/// A text as a cell of a table.
#[must_use]
pub fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
