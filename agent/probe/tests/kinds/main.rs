// SPDX-License-Identifier: Apache-2.0

//! Every kind of probe against real servers: good, slow, refusing, silent and lying ones.

#![allow(clippy::unwrap_used, reason = "a test")]

mod agent;
mod dns;
mod exec;
mod file;
mod grpc;
mod http;
mod icmp;
mod rig;
mod source;
mod tcp;
mod tls;
mod udp;
