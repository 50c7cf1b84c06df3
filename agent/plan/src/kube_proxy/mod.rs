// SPDX-License-Identifier: Apache-2.0

//! Kernel objects of a kube-proxy in IPVS mode: the takeover from one, its leftovers, and the hand-over
//! back to one.
//!
//! Source: `pkg/proxy/ipvs/proxier.go` and `ipset.go`.

mod hand_over;
mod leftovers;
mod takeover;

pub use hand_over::HandOver;
pub use leftovers::{VIP_DEVICE, leftover_rules, leftover_sets, releasable};
pub use takeover::{Claim, has_kube_proxy, takeover_marker};
