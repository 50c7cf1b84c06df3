// SPDX-License-Identifier: Apache-2.0

//! Imports of other clusters: three clusters from files, one node each, behind one controller, with agents
//! that program nftables on this machine's own kernel.
//!
//! The nftables dataplane draws each connection at random by the weights, so that measured shares have a
//! statistical error: of 4,000 connections at 70 % a standard deviation of 0.7 points. The weights themselves
//! are exact, and are compared exactly.

#![allow(clippy::unwrap_used, reason = "a test")]

mod losses;
mod shares;
mod world;
