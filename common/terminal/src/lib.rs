// SPDX-License-Identifier: Apache-2.0

//! Live views in a terminal, for both programs: the loop, the keys of a list, and tables that fit.

#![forbid(unsafe_code)]

mod browse;
mod live;
mod table;

pub use browse::{Browse, Pressed};
pub use live::{Live, has_terminal, watch};
pub use ratatui;
pub use table::{Cells, Condition, draw_table};

/// Whether a view goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// It does.
    Continue,
    /// The user ends it.
    Quit,
}
