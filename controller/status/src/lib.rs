// SPDX-License-Identifier: Apache-2.0

//! The controller's status page: view models, and the pages that are made of them.
//!
//! The crate is pure: no clock, no sockets. A page is a function of a view model. All text of objects is
//! escaped by the templates; no page has a script or a style of its own, so that the content security policy
//! forbids both.

#![forbid(unsafe_code)]

mod ask;
mod assets;
mod clusters;
mod hint;
mod layout;
mod list;
mod node;
mod nodes;
mod overview;
mod problems;
mod service;
mod services;
mod text;

pub use ask::{Answer, Ask, Asked, Endpoint};
pub use assets::{Asset, asset};
pub use clusters::{ClusterRow, Clusters};
pub use hint::{error, hint};
pub use layout::{Frame, PREFIX, Tab, digest_text};
pub use list::{BadQuery, ListQuery, Listed, PAGE_ROWS};
pub use node::{NodeDetails, RecordFault};
pub use nodes::{NodeRow, Nodes, State, select as select_nodes};
pub use overview::{Change, HeldDeletions, Overview, Shares};
pub use problems::{ProblemRow, Problems, select as select_problems, split as split_problem};
pub use service::{Destination, Frontend, Port, ServiceDetails};
pub use services::{ServiceRow, Services};

/// The content security policy of all pages.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests;
