// SPDX-License-Identifier: Apache-2.0

//! Kernel modules: loaded where that is allowed, named in an error otherwise.

use std::io;
use std::path::PathBuf;

use portolan_netlink::ipset::{Ipset, IpsetError};
use portolan_netlink::ipvs::{Ipvs, IpvsError};
use portolan_plan::VipBinding;
use tokio::process::Command;

use super::machine::kernel_release;
use crate::DataplaneError;

/// Modules that [`super::Kernel`] requires, and the schedulers that it uses without being asked.
const MODULES: &str = "ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_sh ip_vs_mh nf_conntrack ip_set \
                       ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet \
                       ip_set_bitmap_port xt_set";

/// Matches and targets of the rules. The kernel loads them by itself when rules are written, if its
/// `modprobe` works.
const MATCHES: &str = "xt_mark xt_connmark xt_conntrack xt_addrtype xt_comment xt_MASQUERADE";

/// Modules of the rule that clamps TCP segments of imports. The other rules work without it.
const CLAMP: [&str; 2] = ["xt_tcpudp", "xt_TCPMSS"];

/// Treatment of kernel modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modules {
    /// They are loaded.
    Load,
    /// Nothing: it is looked whether they could be loaded.
    DryRun,
}

/// Outcome of `modprobe`. A failure need not matter: modules may be part of the kernel itself.
#[derive(Debug, thiserror::Error)]
pub enum Modprobe {
    /// It found all modules, and loaded them unless it was a dry run.
    #[error("modprobe loaded all modules")]
    Loaded,
    /// The modules of the running kernel are not there.
    #[error("there is no directory {}", .0.display())]
    NoDirectory(PathBuf),
    /// It was not run.
    #[error("modprobe: not run")]
    NotRun,
    /// It cannot be run.
    #[error("modprobe: {0}")]
    NotStarted(io::Error),
    /// It did not find or load some modules.
    #[error("{0}")]
    Failed(String),
}

/// Loads the modules that a run with this scheduler and binding needs.
pub async fn load_modules(scheduler: &str, binding: VipBinding, modules: Modules) -> Modprobe {
    let mut names: Vec<String> = [MODULES, MATCHES]
        .iter()
        .flat_map(|list| list.split_whitespace())
        .map(str::to_owned)
        .collect();
    let scheduler = format!("ip_vs_{scheduler}");
    if !names.contains(&scheduler) {
        names.push(scheduler);
    }
    if binding == VipBinding::Address {
        names.push("dummy".to_owned());
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let loaded = modprobe(&names, modules).await;
    if let Modprobe::Failed(message) = modprobe(&CLAMP, modules).await {
        tracing::info!(
            message,
            "modules of --clamp-remote-mss cannot be loaded from here"
        );
    }
    loaded
}

/// Opens IPVS; loads the modules, if that is asked for and the kernel has none.
pub(super) async fn open_ipvs(load: bool) -> Result<Ipvs, DataplaneError> {
    match Ipvs::open() {
        Err(IpvsError::NoIpvs) => {
            let loaded = required(load).await;
            match Ipvs::open() {
                Err(IpvsError::NoIpvs) => Err(missing("IPVS", &loaded)),
                opened => Ok(opened?),
            }
        }
        opened => Ok(opened?),
    }
}

/// Opens ipset; loads the modules, if that is asked for and the kernel has none.
pub(super) async fn open_ipset(load: bool) -> Result<Ipset, DataplaneError> {
    match Ipset::open() {
        Err(IpsetError::NoIpset) => {
            let loaded = required(load).await;
            match Ipset::open() {
                Err(IpsetError::NoIpset) => Err(missing("ipset", &loaded)),
                opened => Ok(opened?),
            }
        }
        opened => Ok(opened?),
    }
}

async fn required(load: bool) -> Modprobe {
    if !load {
        return Modprobe::NotRun;
    }
    let names: Vec<&str> = MODULES.split_whitespace().collect();
    let outcome = modprobe(&names, Modules::Load).await;
    if let Modprobe::Failed(message) = &outcome {
        tracing::warn!(message, "modprobe failed");
    }
    outcome
}

async fn modprobe(names: &[&str], modules: Modules) -> Modprobe {
    if let Some(release) = kernel_release() {
        let directory = PathBuf::from("/lib/modules").join(release);
        if !directory.exists() {
            return Modprobe::NoDirectory(directory);
        }
    }
    let mut command = Command::new("modprobe");
    if modules == Modules::DryRun {
        command.arg("--dry-run");
    }
    match command.arg("-a").args(names).output().await {
        Ok(output) if output.status.success() => Modprobe::Loaded,
        Ok(output) => {
            let message = String::from_utf8_lossy(&output.stderr);
            Modprobe::Failed(message.trim().replace('\n', "; "))
        }
        Err(error) => Modprobe::NotStarted(error),
    }
}

fn missing(what: &'static str, outcome: &Modprobe) -> DataplaneError {
    let reason = outcome.to_string();
    DataplaneError::NoModule { what, reason }
}

impl DataplaneError {
    /// The command for an operator to run on the host where the agent may not.
    pub(crate) fn modprobe() -> String {
        format!("modprobe -a {MODULES}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_missing_part_the_reason_and_the_remedy() {
        let failed = Modprobe::Failed("modprobe: not permitted".to_owned());
        let error = missing("IPVS", &failed).to_string();
        let start = "the kernel has no IPVS, and its modules cannot be loaded from here (modprobe: \
                     not permitted): on the host, run `modprobe -a ip_vs ip_vs_rr ";
        assert!(error.starts_with(start), "{error}");
    }
}
