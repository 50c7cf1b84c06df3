//! Real tonic over loopback, with the real controller's half and with one that misbehaves.

mod cluster;
mod fake;
mod kept;
mod real;
mod secure;
pub(crate) mod support;
mod wire;
