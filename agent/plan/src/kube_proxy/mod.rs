// SPDX-License-Identifier: Apache-2.0

//! Kernel objects of a kube-proxy: the takeover from one, its leftovers, and the hand-over back to one.
//!
//! Source: `pkg/proxy/ipvs/proxier.go` and `ipset.go`.

mod hand_over;
mod leftovers;
pub mod packet_rules;
mod takeover;

pub use hand_over::{HandOver, ServedByKubeProxy};
pub use leftovers::{VIP_DEVICE, leftover_rules, leftover_sets, releasable};
pub use packet_rules::{PacketRules, RuleMode};
pub use takeover::{Claim, has_kube_proxy, must_take_over_first, takeover_marker};
