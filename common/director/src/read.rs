// SPDX-License-Identifier: Apache-2.0

//! From the text of a file to documents that have the right structure.

mod node;
mod path;
mod prune;
mod split;
mod structure;

pub(crate) use node::Node;
pub(crate) use path::Path;
pub(crate) use prune::without;
pub(crate) use split::{Format, documents};
pub(crate) use structure::check;
