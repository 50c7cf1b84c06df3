// SPDX-License-Identifier: Apache-2.0

//! Imports of other clusters: three clusters from files, one node each, behind one controller, with agents
//! that program nftables on this machine's own kernel, or IPVS in a guest.
//!
//! The nftables dataplane draws each connection at random by the weights, so that measured shares have a
//! statistical error: of 4,000 connections at 70 % a standard deviation of 0.7 points. IPVS takes endpoints in
//! turns, so that its shares are exact but for a part of the last turn. The weights themselves are exact with both,
//! and are compared exactly.

#![allow(clippy::unwrap_used, reason = "a test")]

mod delivery;
mod edges;
mod failures;
mod hashed;
mod isolation;
mod losses;
mod names;
mod nodes;
mod ports;
mod served;
mod shares;
mod world;

/// The demo says what it shows, and fails if it is not so.
#[test]
fn the_demo_shows_what_it_promises() {
    if world::skip("the_demo_shows_what_it_promises") {
        return;
    }
    let mut shown = String::new();
    portolan_e2e::clusters_demo::run(|text| {
        shown.push_str(text);
        Ok(())
    })
    .unwrap();
    assert!(shown.contains("eu-2     yes     Lost   0/20"), "{shown}");
    assert!(shown.contains("eu-2 0.0 %"), "{shown}");
}
