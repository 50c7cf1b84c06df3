// SPDX-License-Identifier: Apache-2.0

//! Texts of tables, desired states and steps, for people: in the words of `iptables`, `ipvsadm`, `ipset` and `ip`.

mod commands;
pub mod env;
mod iptables;
mod ipvsadm;
mod kube_proxy_nftables;
mod port;
mod steps;
#[cfg(test)]
mod testing;

pub use iptables::{IptablesSettings, iptables};
pub use ipvsadm::{ipvsadm, save, save_families};
pub use kube_proxy_nftables::{NftablesSettings, kube_proxy_nftables};
pub(crate) use steps::ObjectKind;
pub use steps::{Action, StepLine, Totals, step_lines};

/// A text for another program, and what it leaves out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Export {
    /// The text.
    pub text: String,
    /// Sentences about objects that the text leaves out or changes, each with the object's name.
    pub notes: Vec<String>,
}
