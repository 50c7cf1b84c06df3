//! Where objects come from: a Kubernetes API server, files.
//!
//! A source watches, decodes and tells a [`Sink`] what changed; it decides nothing. One bad object
//! never stops the others: it is refused with the field's name, and its last good version stays.

#![forbid(unsafe_code)]

pub mod deletions;
pub mod file;
mod holds;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "kubernetes")]
pub mod lease;
mod names;
pub mod objects;
mod problem_log;
mod sink;

pub use file::FileProblem;
pub use holds::Holds;
pub use names::NameSink;
pub use problem_log::{ProblemLabels, ProblemLog};
pub use sink::{Closed, Event, Sink};
