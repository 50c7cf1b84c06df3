// SPDX-License-Identifier: Apache-2.0

//! Services by sockets of this process: for development, tests, and machines without any right or kernel module.
//!
//! [`Proxy`] serves the ways of a table: to one command in namespaces of its own ([`inside`]), or on the loopback
//! device. Endpoints see connections of this machine.
//! Choices, lists and places are pure ([`Chooser`], [`Affinity`], `places`); the rest is sockets.

#![forbid(unsafe_code)]

mod affinity;
mod asked;
mod choose;
pub mod inside;
mod joined;
mod limits;
mod listen;
mod listing;
mod metrics;
mod names;
mod parts;
mod places;
mod proxy;
mod service;
mod shared;
mod tcp;
mod udp;
mod way;

pub use affinity::Affinity;
pub use asked::Asked;
pub use choose::Chooser;
pub use listen::{Listen, Transport};
pub use listing::{hosts, unprivileged_port};
pub use metrics::Metrics;
pub use names::resolv_conf;
pub use places::Listed;
pub use proxy::{Applied, Clients, Proxy, ProxyConfig};
