// SPDX-License-Identifier: Apache-2.0

//! Tests with real tonic over loopback. Tests wait for expected events, never for fixed times.

mod backpressure;
mod clusters;
mod hostile;
mod limits;
mod nodes;
mod protocol;
mod rates;
mod resume;
mod reviews;
mod secure;
mod support;
mod tables;
mod tls;
