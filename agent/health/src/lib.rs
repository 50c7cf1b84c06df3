// SPDX-License-Identifier: Apache-2.0

//! Health of the backends of load balancers: states, quorum, and the weights that follow from them.
//!
//! Pure: no I/O, no clock. Time is an argument, the time since boot. A [`Balancer`] takes the outcomes
//! of probes and gives [`Verdicts`].

#![forbid(unsafe_code)]

mod backend;
mod balancer;
mod judgement;
mod outcome;
mod ramp;
mod saved;
mod verdict;
mod wanted;
mod weight;

pub use backend::{Change, State};
pub use balancer::{Balancer, Told};
pub use judgement::Judgement;
pub use outcome::{Administrative, DynamicWeight, Outcome, Reason, Word};
pub use saved::{CheckHash, MAX_AGE, Saved, SavedBackend, SavedBalancer};
pub use verdict::{BackendStatus, Presence, Verdict, Verdicts};
pub use wanted::{Assigned, Backend, LoadBalancer, Way};
