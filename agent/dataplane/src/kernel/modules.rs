// SPDX-License-Identifier: Apache-2.0

//! Kernel modules: loaded where that is allowed, named in an error otherwise.

use portolan_netlink::ipset::{Ipset, IpsetError};
use portolan_netlink::ipvs::{Ipvs, IpvsError};
use tokio::process::Command;

use crate::DataplaneError;

/// Modules that [`super::Kernel`] requires, and the schedulers that it uses without being asked.
const MODULES: &str = "ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_sh ip_vs_mh nf_conntrack ip_set \
                       ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet \
                       ip_set_bitmap_port xt_set";

/// Opens IPVS; loads the modules if the kernel has none.
pub(super) async fn open_ipvs() -> Result<Ipvs, DataplaneError> {
    match Ipvs::open() {
        Err(IpvsError::NoIpvs) => {
            let loaded = load().await;
            match Ipvs::open() {
                Err(IpvsError::NoIpvs) => Err(missing("IPVS", &loaded)),
                opened => Ok(opened?),
            }
        }
        opened => Ok(opened?),
    }
}

/// Opens ipset; loads the modules if the kernel has none.
pub(super) async fn open_ipset() -> Result<Ipset, DataplaneError> {
    match Ipset::open() {
        Err(IpsetError::NoIpset) => {
            let loaded = load().await;
            match Ipset::open() {
                Err(IpsetError::NoIpset) => Err(missing("ipset", &loaded)),
                opened => Ok(opened?),
            }
        }
        opened => Ok(opened?),
    }
}

/// Outcome of `modprobe`.
#[derive(Debug, thiserror::Error)]
enum Modprobe {
    #[error("modprobe loaded all modules")]
    Loaded,
    #[error("modprobe: {0}")]
    NotStarted(std::io::Error),
    #[error("{0}")]
    Failed(String),
}

/// Loads the modules. A failure need not matter: some may be part of the kernel itself.
async fn load() -> Modprobe {
    let mut command = Command::new("modprobe");
    let output = command.arg("-a").args(MODULES.split_whitespace()).output();
    let output = match output.await {
        Ok(output) if output.status.success() => return Modprobe::Loaded,
        Ok(output) => output,
        Err(error) => return Modprobe::NotStarted(error),
    };
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().replace('\n', "; ");
    tracing::warn!(message, "modprobe failed");
    Modprobe::Failed(message)
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
