// SPDX-License-Identifier: Apache-2.0

//! Objects of the Multi-Cluster Services API (KEP-1645, `multicluster.x-k8s.io/v1beta1`): what clusters should
//! have, and the writes that make them so.
//!
//! Pure: values in, values out; no I/O, no clock. What a cluster has is compared with what it should have, and
//! only the difference is written: nothing of other programs, and nothing that is as it should be.

#![forbid(unsafe_code)]

mod admit;
mod condition;
mod difference;
mod labels;
mod manifest;
mod slice;
mod wanted;

pub use admit::{Refused, admit, admit_slice};
pub use condition::WantedCondition;
pub use difference::{Awaited, Observed, writes};
pub use manifest::{Action, Target, Write, WriteKind, at};
pub use slice::{WantedEndpoint, WantedEndpoints, WantedSlice, slices};
pub use wanted::{Wanted, WantedImport};
