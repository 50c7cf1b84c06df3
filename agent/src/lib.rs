// SPDX-License-Identifier: Apache-2.0

//! The node agent: keeps the kernel equal to the node's service table.

#![forbid(unsafe_code)]

pub mod addresses;
pub mod app;
pub mod args;
mod ask;
pub mod backends;
pub mod check_config;
pub mod check_run;
pub mod choice;
pub mod cleanup;
pub mod config;
pub mod director;
pub mod dns;
pub mod docs;
pub mod export;
pub mod families;
mod forwarding;
pub mod health;
pub mod health_check;
pub mod healthz;
mod hooks;
pub mod identity;
pub mod import_kernel;
pub mod kube_proxy;
pub mod metrics;
pub mod notify;
pub mod once;
pub mod overview;
pub mod prepare;
pub mod reload;
mod spans;
pub mod standalone;
mod state_file;
pub mod state_lock;
pub mod status;
pub mod subscribe;
pub mod sync;
mod trace;
