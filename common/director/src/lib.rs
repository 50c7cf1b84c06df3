// SPDX-License-Identifier: Apache-2.0

//! The files of a director: `LoadBalancer` and `Director` objects.
//!
//! Pure: texts in, values and texts out; no files, no network, no clock.
//!
//! A text becomes a tree of values that know their line and column (`read`). The tree is checked
//! against the JSON schema of the types of [`document`], which finds every field that is unknown,
//! missing or out of range. The documents then become [`LoadBalancer`] and [`Director`], which
//! hold only what makes sense together, and these become a [`Generation`], in which no two claim
//! the same virtual server.
//!
//! YAML is read by `serde-saphyr`, as elsewhere in the workspace: it is maintained, needs no
//! `unsafe`, limits nesting and aliases, and gives each value its position (`Spanned`). Derived
//! deserialisation stops at the first error, so the tree between is our own.

#![forbid(unsafe_code)]

pub mod document;
mod problem;
mod read;
mod schema;

pub use problem::{Position, Problem, not_applied};
pub use schema::{schema, schema_text};
