// SPDX-License-Identifier: Apache-2.0

//! The kinds of probes, one a file.

pub(crate) mod agent;
mod connection;
pub(crate) mod dns;
pub(crate) mod exec;
pub(crate) mod file;
pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod icmp;
pub(crate) mod tcp;
pub(crate) mod tls;
pub(crate) mod udp;
