// SPDX-License-Identifier: Apache-2.0

//! Texts of desired states and of steps, for people: in the words of `ipvsadm`, `ipset` and `ip`.

mod ipvsadm;
mod steps;

pub use ipvsadm::save;
pub(crate) use steps::ObjectKind;
pub use steps::{Action, StepLine, Totals, step_lines};
