//! Real tonic over loopback, with the real controller's half and with one that misbehaves.

mod fake;
mod real;
mod secure;
mod support;
