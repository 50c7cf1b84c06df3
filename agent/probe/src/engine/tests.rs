// SPDX-License-Identifier: Apache-2.0

//! The engine under paused time, with probes that are made up.

mod limits;
mod rig;
mod schedule;
mod state;
mod suspend;
