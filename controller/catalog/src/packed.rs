//! Objects as the catalog keeps them: 100,000 endpoints are most of its memory, and most of what
//! they say they say alike.

mod few;
mod service;
mod slice;

pub(crate) use few::Few;
pub(crate) use service::PackedService;
pub(crate) use slice::{Pack, PackedSlice, cut};

#[cfg(test)]
mod tests;
