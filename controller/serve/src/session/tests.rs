//! Real tonic over loopback. A test waits for what it expects, never for a time.

mod backpressure;
mod protocol;
mod support;
mod tables;
