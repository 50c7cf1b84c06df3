//! Real tonic over loopback. A test waits for what it expects, never for a time.

mod backpressure;
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
