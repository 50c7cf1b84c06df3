// SPDX-License-Identifier: Apache-2.0

//! Publication of the controllers' addresses and authority in a ConfigMap that exists.
//!
//! The kubelet brings the ConfigMap into the agents' pods: agents find controllers without a service
//! proxy, DNS or an own client of the API server.

mod args;
mod content;
mod task;

pub(crate) use args::PublishArgs;
pub(crate) use task::{Authority, Publication};
