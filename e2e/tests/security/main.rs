//! The controller's program, its certificates as `portolan-controller certs` makes them, real TLS:
//! who is let in, and what those can do who are not; relays; and `portolanctl`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod admission;
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
