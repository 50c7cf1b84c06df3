// SPDX-License-Identifier: Apache-2.0

//! Streams of real tonic over loopback, with the real controller and with a faulty one.

mod cluster;
mod fake;
mod kept;
mod real;
mod secure;
pub(crate) mod support;
mod wire;
