//! Real tonic over loopback, with the real controller's half and with one that misbehaves.

mod fake;
mod kept;
mod real;
mod secure;
pub(crate) mod support;
mod wire;
