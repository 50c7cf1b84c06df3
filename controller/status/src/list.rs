// SPDX-License-Identifier: Apache-2.0

//! Lists: their parameters, filters, order and pages. The server makes one page at a time, so that a browser has
//! few rows however many objects there are.

use std::fmt::Write as _;

use form_urlencoded::{Serializer, parse};
use maud::{Markup, html};

use crate::layout::path;

/// Rows of a page.
pub const PAGE_ROWS: usize = 100;
/// Longest filter in characters.
const MAX_FILTER: usize = 256;

/// A parameter that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}: {value:?}: expected {expected}")]
pub struct BadQuery {
    /// The parameter.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Description of the values that are valid.
    pub expected: String,
}

/// Selection and order of the rows of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// The cluster; empty for the only one, or all.
    pub cluster: String,
    /// Text that rows must contain, in small letters.
    pub filter: String,
    /// State that rows must have; empty for any.
    pub state: String,
    /// Column that rows are sorted by; empty for the first.
    pub sort: String,
    /// Whether the order is reversed.
    pub descending: bool,
    /// Number of the page, from 1.
    pub page: usize,
}

impl ListQuery {
    /// Parses the query of an address. `columns` are the columns that rows can be sorted by, `states` the states.
    ///
    /// # Errors
    /// If a parameter has no such value, or does not exist.
    pub fn parse(query: &str, columns: &[&str], states: &[&str]) -> Result<Self, BadQuery> {
        let mut this = Self {
            page: 1,
            ..Self::default()
        };
        for (name, value) in parse(query.as_bytes()) {
            let bad = |expected: &str| BadQuery {
                name: name.to_string(),
                value: value.to_string(),
                expected: expected.to_owned(),
            };
            let one_of = |known: &[&str]| match known.contains(&&*value) || value.is_empty() {
                true => Ok(value.to_string()),
                false => Err(bad(&format!("one of {}", known.join(", ")))),
            };
            match &*name {
                "cluster" => this.cluster = value.into_owned(),
                "q" if value.chars().count() > MAX_FILTER => {
                    return Err(bad("at most 256 characters"));
                }
                "q" => this.filter = value.trim().to_lowercase(),
                "state" => this.state = one_of(states)?,
                "sort" => this.sort = one_of(columns)?,
                "order" => this.descending = value == "descending",
                "page" => {
                    let number = value.parse().ok().filter(|page| *page > 0);
                    this.page = number.ok_or_else(|| bad("a number from 1"))?;
                }
                _ => return Err(bad("no such parameter")),
            }
        }
        Ok(this)
    }

    /// Returns `true` if a row with these texts contains the filter.
    #[must_use]
    pub fn admits<'t>(&self, texts: impl IntoIterator<Item = &'t str>) -> bool {
        let mut texts = texts.into_iter();
        self.filter.is_empty() || texts.any(|text| text.to_lowercase().contains(&self.filter))
    }

    /// The query of an address with these values.
    fn link(&self, tab: &str) -> String {
        let mut query = Serializer::new(String::new());
        let page = self.page.to_string();
        let order = if self.descending { "descending" } else { "" };
        for (name, value) in [
            ("cluster", &*self.cluster),
            ("q", &*self.filter),
            ("state", &*self.state),
            ("sort", &*self.sort),
            ("order", order),
            ("page", if self.page == 1 { "" } else { &*page }),
        ] {
            if !value.is_empty() {
                query.append_pair(name, value);
            }
        }
        let (mut link, query) = (path(tab), query.finish());
        if !query.is_empty() {
            let _ = write!(link, "?{query}");
        }
        link
    }
}

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    /// The rows of the page.
    pub rows: Vec<T>,
    /// Rows of the whole list.
    pub total: usize,
    /// Rows that the filter admits.
    pub matching: usize,
    /// The query, with the number of the page that is shown.
    pub query: ListQuery,
}

impl<T> Listed<T> {
    /// The page of a query, of rows that are filtered and sorted. A page behind the last one is the last one.
    pub fn new(
        mut query: ListQuery,
        total: usize,
        matching: impl ExactSizeIterator<Item = T>,
    ) -> Self {
        let count = matching.len();
        query.page = query.page.clamp(1, count.div_ceil(PAGE_ROWS).max(1));
        let first = (query.page - 1) * PAGE_ROWS;
        let rows = matching.skip(first).take(PAGE_ROWS).collect();
        Self {
            rows,
            total,
            matching: count,
            query,
        }
    }

    /// The same page of other rows.
    pub fn map<U>(self, other: impl FnMut(T) -> U) -> Listed<U> {
        Listed {
            rows: self.rows.into_iter().map(other).collect(),
            total: self.total,
            matching: self.matching,
            query: self.query,
        }
    }

    fn pages(&self) -> usize {
        self.matching.div_ceil(PAGE_ROWS).max(1)
    }

    /// The number of rows, and links to other pages.
    pub(crate) fn pager(&self, tab: &str) -> Markup {
        let to = |page: usize| {
            let query = ListQuery {
                page,
                ..self.query.clone()
            };
            query.link(tab)
        };
        let (page, pages) = (self.query.page, self.pages());
        html! {
            p.count {
                @if self.matching == self.total { (self.total) " in all" }
                @else { (self.matching) " of " (self.total) }
            }
            @if pages > 1 {
                nav.pager aria-label="Pages" {
                    @if page > 1 { a rel="prev" href=(to(page - 1)) { "Previous" } " " }
                    span { "Page " (page) " of " (pages) }
                    @if page < pages { " " a rel="next" href=(to(page + 1)) { "Next" } }
                }
            }
        }
    }

    /// The heading of a column: a link that sorts by it, and reverses the order the next time.
    pub(crate) fn heading(&self, tab: &str, column: &str, title: &str) -> Markup {
        let is_sorted = self.query.sort == column;
        let query = ListQuery {
            sort: column.to_owned(),
            descending: is_sorted && !self.query.descending,
            page: 1,
            ..self.query.clone()
        };
        let order = match (is_sorted, self.query.descending) {
            (false, _) => None,
            (true, false) => Some("ascending"),
            (true, true) => Some("descending"),
        };
        html! { th scope="col" aria-sort=[order] { a href=(query.link(tab)) { (title) } } }
    }

    /// The form of the filter. It keeps all other parameters.
    pub(crate) fn filter(&self, tab: &str, label: &str, states: &[&str]) -> Markup {
        let query = &self.query;
        html! {
            form.filter method="get" action=(path(tab)) role="search" {
                label { (label) " " input type="search" name="q" value=(query.filter) maxlength=(MAX_FILTER); }
                @if !states.is_empty() {
                    label { "State "
                        select name="state" {
                            option value="" { "any" }
                            @for state in states {
                                option value=(state) selected[query.state == **state] { (state) }
                            }
                        }
                    }
                }
                @if !query.cluster.is_empty() { input type="hidden" name="cluster" value=(query.cluster); }
                @if !query.sort.is_empty() { input type="hidden" name="sort" value=(query.sort); }
                @if query.descending { input type="hidden" name="order" value="descending"; }
                button type="submit" { "Show" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<ListQuery, BadQuery> {
        ListQuery::parse(query, &["name", "lag"], &["behind"])
    }

    #[test]
    fn parameters_are_read_and_wrong_ones_named() {
        let query = parsed("q=+Web&sort=lag&order=descending&page=3&state=behind").unwrap();
        assert_eq!((&*query.filter, &*query.sort), ("web", "lag"));
        assert_eq!((query.descending, query.page), (true, 3));
        assert_eq!(parsed("sort=&state=&q=").unwrap(), parsed("").unwrap());
        for (query, expected) in [
            ("page=0", "page: \"0\": expected a number from 1"),
            ("page=x", "page: \"x\": expected a number from 1"),
            ("sort=age", "sort: \"age\": expected one of name, lag"),
            ("state=up", "state: \"up\": expected one of behind"),
            ("x=1", "x: \"1\": expected no such parameter"),
        ] {
            assert_eq!(parsed(query).unwrap_err().to_string(), expected);
        }
        let long = format!("q={}", "x".repeat(257));
        assert!(parsed(&long).is_err());
    }

    #[test]
    fn a_link_leads_back_to_the_same_query() {
        let query = "cluster=eu&q=a%26b&state=behind&sort=lag&order=descending&page=2";
        let query = parsed(query).unwrap();
        let link = query.link("nodes");
        let (path, rest) = link.split_once('?').unwrap();
        assert_eq!((path, parsed(rest)), ("/status/nodes", Ok(query)));
        assert_eq!(parsed("").unwrap().link("nodes"), "/status/nodes");
    }

    #[test]
    fn pages_have_all_rows_once_and_end_with_the_last() {
        let of = |page: usize| {
            let query = ListQuery {
                page,
                ..ListQuery::default()
            };
            Listed::new(query, 500, 0..250)
        };
        assert_eq!(of(1).rows, (0..100).collect::<Vec<_>>());
        assert_eq!(of(3).rows, (200..250).collect::<Vec<_>>());
        assert_eq!(of(9), of(3));
        assert_eq!(of(0), of(1));
        let none = Listed::new(ListQuery::default(), 0, std::iter::empty::<u8>());
        assert_eq!((none.rows.len(), none.query.page), (0, 1));
        let pager = of(2).pager("nodes").into_string();
        assert!(
            pager.contains("250 of 500") && pager.contains("Page 2 of 3"),
            "{pager}"
        );
        assert!(pager.contains("page=3") && pager.contains("rel=\"prev\" href=\"/status/nodes\""));
    }

    #[test]
    fn a_heading_sorts_and_then_reverses() {
        let sorted = |query: &str| Listed::new(parsed(query).unwrap(), 1, 0..1);
        let first = sorted("q=a&page=1")
            .heading("nodes", "lag", "Lag")
            .into_string();
        assert_eq!(
            first,
            "<th scope=\"col\"><a href=\"/status/nodes?q=a&amp;sort=lag\">Lag</a></th>"
        );
        let second = sorted("sort=lag")
            .heading("nodes", "lag", "Lag")
            .into_string();
        assert!(second.contains("aria-sort=\"ascending\"") && second.contains("order=descending"));
        let third = sorted("sort=lag&order=descending").heading("nodes", "lag", "Lag");
        let third = third.into_string();
        assert!(third.contains("aria-sort=\"descending\"") && !third.contains("order="));
    }
}
