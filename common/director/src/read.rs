// SPDX-License-Identifier: Apache-2.0

//! From the text of a file to documents that have the right structure.
//!
//! Files of other kinds of objects of `portolan.dev` are read by the same code, so that all problems
//! look alike.

mod line;
mod node;
mod path;
mod prune;
mod split;
mod structure;

pub use node::{Key, Node, SyntaxError, Value};
pub use path::Path;
pub(crate) use prune::without;
pub use split::{Format, documents};
pub(crate) use split::{Piece, split};
pub use structure::{Misfit, check};
