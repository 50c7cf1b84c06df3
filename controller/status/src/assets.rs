// SPDX-License-Identifier: Apache-2.0

//! Files that pages refer to; all of them are in the program.

/// A file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    /// Its type.
    pub content_type: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// The file of a name.
#[must_use]
pub fn asset(name: &str) -> Option<Asset> {
    let (content_type, text) = match name {
        "style.css" => ("text/css; charset=utf-8", include_str!("assets/style.css")),
        "live.js" => (
            "text/javascript; charset=utf-8",
            include_str!("assets/live.js"),
        ),
        "icon.svg" => ("image/svg+xml", include_str!("assets/icon.svg")),
        _ => return None,
    };
    Some(Asset { content_type, text })
}
