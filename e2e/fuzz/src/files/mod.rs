// SPDX-License-Identifier: Apache-2.0

//! The fuzz targets of what administrators write: files of a director, configurations of other
//! directors, and policies of several clusters.
//!
//! The first byte of an input states how the rest, a text, is to be read. Other inputs, and texts
//! that are not UTF-8, are skipped.

pub mod director;
pub mod import;
mod place;
pub mod policy;

/// The notations of files.
pub mod kind {
    /// A text in YAML.
    pub const YAML: u8 = b'y';
    /// A text in JSON.
    pub const JSON: u8 = b'j';
}

/// The name of the file that an input of [`director`] or [`policy`] stands for, and its text.
fn file(input: &[u8]) -> Option<(&'static str, &str)> {
    let (kind, text) = input.split_first()?;
    let name = match *kind {
        kind::YAML => "x.yaml",
        kind::JSON => "x.json",
        _ => return None,
    };
    Some((name, std::str::from_utf8(text).ok()?))
}

/// A seed: a text after the byte that states its kind.
fn seed(kind: u8, text: &str) -> Vec<u8> {
    [&[kind], text.as_bytes()].concat()
}

/// Lists within each other, `depth` of them, in YAML and JSON.
fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}
