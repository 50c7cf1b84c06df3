// SPDX-License-Identifier: Apache-2.0

//! Parts that all pages share: head, navigation and footer.

use form_urlencoded::Serializer;
use maud::{DOCTYPE, Markup, html};

/// The path that all pages are below.
pub const PREFIX: &str = "/status";
/// Period after which a browser without JavaScript loads the page again, in seconds.
const REFRESH: u32 = 15;

/// A page of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tab {
    /// The state as a whole: the shares of nodes with the newest tables, changes and problems.
    Overview,
    /// The agents.
    Nodes,
    /// The Services.
    Services,
    /// Endpoints that answer at an address, and the reasons.
    Ask,
    /// The clusters.
    Clusters,
    /// The problems.
    Problems,
}

impl Tab {
    const ALL: [Self; 6] = [
        Self::Overview,
        Self::Nodes,
        Self::Services,
        Self::Ask,
        Self::Clusters,
        Self::Problems,
    ];

    /// Its path below [`PREFIX`].
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Overview => "",
            Self::Nodes => "nodes",
            Self::Services => "services",
            Self::Ask => "ask",
            Self::Clusters => "clusters",
            Self::Problems => "problems",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Nodes => "Nodes",
            Self::Services => "Services",
            Self::Ask => "Ask",
            Self::Clusters => "Clusters",
            Self::Problems => "Problems",
        }
    }
}

/// The state of the controller that every page shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frame {
    /// The program's version.
    pub version: String,
    /// The cluster that the page is about; `None` if it is about all, or there is one.
    pub cluster: Option<String>,
    /// Reasons why the controller is not ready.
    pub unready: Vec<String>,
    /// The digest of the state from before the page was made, as the stream of changes tells it. A
    /// browser that is told another one fetches the page again.
    pub digest: u64,
}

/// The form of a digest in pages and in the stream of changes.
#[must_use]
pub fn digest_text(digest: u64) -> String {
    format!("{digest:016x}")
}

/// The path of a page.
pub(crate) fn path(page: &str) -> String {
    format!("{PREFIX}/{page}")
}

/// The path of a page with parameters; empty ones are left out.
pub(crate) fn link(page: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = Serializer::new(String::new());
    let set = parameters.iter().filter(|(_, value)| !value.is_empty());
    query.extend_pairs(set);
    match query.finish() {
        query if query.is_empty() => path(page),
        query => format!("{}?{query}", path(page)),
    }
}

/// A whole page.
pub(crate) fn page(frame: &Frame, tab: Tab, title: &str, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " – Portolan" }
                link rel="stylesheet" href=(path("style.css"));
                link rel="icon" type="image/svg+xml" href=(path("icon.svg"));
                script src=(path("live.js")) defer {}
                noscript { meta http-equiv="refresh" content=(REFRESH); }
            }
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    p.name { "Portolan" }
                    nav aria-label="Pages of the status" {
                        ul {
                            @for one in Tab::ALL {
                                li {
                                    a href=(path(one.path())) aria-current=[(one == tab).then_some("page")] {
                                        (one.title())
                                    }
                                }
                            }
                        }
                    }
                    p #live role="status" {}
                }
                main #main tabindex="-1" data-digest=(digest_text(frame.digest)) {
                    h1 { (title) }
                    @if let Some(cluster) = &frame.cluster { p { "Cluster " b { (cluster) } } }
                    @for reason in &frame.unready {
                        p.bad { "The controller is not ready: it waits for " (reason) "." }
                    }
                    (content)
                }
                footer { p { "portolan-controller " (frame.version) } }
            }
        }
    }
}

/// A table that scrolls by itself where the window is narrow.
pub(crate) fn table(label: &str, headings: &Markup, rows: &Markup) -> Markup {
    html! {
        div.scroll role="region" aria-label=(label) tabindex="0" {
            table { thead { tr { (headings) } } tbody { (rows) } }
        }
    }
}

/// The heading of a column that rows are not sorted by.
pub(crate) fn heading(title: &str) -> Markup {
    html! { th scope="col" { (title) } }
}
