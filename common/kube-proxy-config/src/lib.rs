// SPDX-License-Identifier: Apache-2.0

//! KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1, Kubernetes 1.36), and what becomes of each
//! field in the values of the Helm chart.
//!
//! [`FIELDS`] is the one table of all fields: their types, kube-proxy's flags, and their counterparts or the
//! reason why there is none. Pure: no files, no network.

#![forbid(unsafe_code)]

mod becomes;
mod config;
mod duration;
mod field;
mod fields;
mod flags;
mod values;

pub use becomes::{Converted, Finding, convert};
pub use config::{Config, ConfigError, Problem, Setting, parse};
pub use field::{Becomes, Field, Kind, Modes};
pub use fields::FIELDS;
pub use flags::parse_flags;
pub use values::{Values, render};
