// SPDX-License-Identifier: Apache-2.0

//! The controller's program with real TLS and certificates of `portolan-controller certs`: admission, attacks
//! by clients with and without admission, relays, and `portolanctl`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod admission;
mod agent_probes;
mod attacks;
mod client;
mod ctl;
mod dns;
mod floods;
mod http2;
mod probes;
mod relay;
mod rotation;
mod server;
mod shutdown;
mod tokens;
