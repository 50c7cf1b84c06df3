//! What each half decodes, and what must hold whatever the bytes are.
//!
//! A target takes bytes and panics if something does not hold. `e2e/fuzz/run` builds the targets with
//! coverage for libFuzzer; without it their programs replay files, and a test replays the seeds.

pub mod agent;
pub mod controller;
pub mod dns;
pub mod input;
pub mod seeds;
