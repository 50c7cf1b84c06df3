// SPDX-License-Identifier: Apache-2.0

//! Sources of objects: a Kubernetes API server, files, an etcd.
//!
//! A source watches, decodes and sends changes to a [`Sink`]; it decides nothing. One bad object
//! never stops the others: it is refused with the field's name, and its last good version stays.

#![forbid(unsafe_code)]

mod contact;
pub mod deletions;
#[cfg(feature = "edge")]
pub mod edge;
mod estate;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
mod groups;
mod held;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "kubernetes")]
pub mod lease;
mod names;
pub mod objects;
mod problem_log;
mod sink;

pub use contact::{Contact, ContactCollector, watch_contact};
pub use file::FileProblem;
pub use groups::LabelledNode;
pub use held::{HeldDeletions, HeldKey, HoldReport};
pub use names::NameSink;
pub use problem_log::{ObjectProblem, ProblemLabels, ProblemLog};
pub use sink::{Closed, Event, Sink};
