//! From a node's table to the kernel: the desired state, and the ordered steps that lead to it.
//!
//! Pure: no I/O, no clock. [`desire`] says what the kernel should hold, [`plan`] how to get there
//! from what it holds. The order of the steps is such that no prefix of them forwards
//! un-masqueraded, refers to a set that is missing, or takes away what is still in use.

#![forbid(unsafe_code)]

mod advance;
mod config;
mod desire;
pub mod kube_proxy;
mod marks;
mod names;
mod ours;
mod plan;
mod rules;
mod state;

pub use config::{Config, DetectLocal, InvalidMask, MarkMask, NodeFacts, VipBinding};
pub use desire::{Desired, IncrementalDesired, Note, Refused, Touched, desire};
pub use names::{Names, SetName, ownership_entry};
pub use plan::{plan, plan_additions, plan_touched};
pub use rules::{Jump, Rules, Table, rules};
pub use state::{KernelState, Step};
