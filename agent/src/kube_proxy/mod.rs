// SPDX-License-Identifier: Apache-2.0

//! kube-proxy on this node: detection of a running one, takeover from a stopped one, and hand-over
//! back to one.

mod hand_over;
mod running;
mod takeover;
mod takes_over;

pub(crate) use hand_over::{hand_over, hand_over_tables};
pub use running::{HEALTHZ, METRICS, Running, Search};
pub use takeover::{Takeover, TakeoverConfig, TakeoverError};

#[cfg(test)]
pub(crate) use running::testing::fake_kube_proxy;
