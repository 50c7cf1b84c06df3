// SPDX-License-Identifier: Apache-2.0

//! Problems: object, field, message, and since when.

use std::time::Duration;

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, page, table};
use crate::list::{ListQuery, Listed};
use crate::text::maybe;

/// One page of the problems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    /// The rows.
    pub list: Listed<ProblemRow>,
}

/// A problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProblemRow {
    /// The object with its kind, or the file with its line.
    pub object: String,
    /// The field; empty if the whole object is meant.
    pub field: String,
    /// Description of the problem.
    pub message: String,
    /// Time since it was first seen.
    pub since: Option<Duration>,
}

/// Object, field and message of a problem's text: `OBJECT: FIELD: MESSAGE` or `OBJECT: MESSAGE`.
#[must_use]
pub fn split(text: &str) -> (&str, &str, &str) {
    let Some((object, rest)) = text.split_once(": ") else {
        return ("", "", text);
    };
    match rest.split_once(": ") {
        // A field is one word.
        Some((field, message)) if !field.contains(' ') => (object, field, message),
        _ => (object, "", rest),
    }
}

/// The problems that a query admits, in their order.
#[must_use]
pub fn select(all: Vec<ProblemRow>, query: ListQuery) -> Problems {
    let total = all.len();
    let mut rows = all;
    rows.retain(|row| query.admits([&*row.object, &row.field, &row.message]));
    Problems {
        list: Listed::new(query, total, rows.into_iter()),
    }
}

impl Problems {
    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let tab = Tab::Problems.path();
        let content = html! {
            p.quiet { "Objects and files with fields that cannot be used. The rest of each is used, or its last good version." }
            (self.list.filter(tab, "Object, field or message", &[]))
            (self.list.pager(tab))
            @if self.list.total == 0 { p.good { "No problems." } }
            @else { (rows(&self.list.rows)) }
        };
        page(frame, Tab::Problems, "Problems", &content)
    }
}

pub(crate) fn rows(all: &[ProblemRow]) -> Markup {
    let headings =
        html! { (heading("Object")) (heading("Field")) (heading("Message")) (heading("Since")) };
    let rows = html! {
        @for row in all {
            tr { th scope="row" { (row.object) } td { (row.field) } td { (row.message) } td { (maybe(row.since)) } }
        }
    };
    table("Problems", &headings, &rows)
}
