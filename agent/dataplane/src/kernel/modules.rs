//! Kernel modules: loaded where that is allowed, asked for by name where it is not.

use portolan_netlink::ipset::{Ipset, IpsetError};
use portolan_netlink::ipvs::{Ipvs, IpvsError};
use tokio::process::Command;

use crate::DataplaneError;

/// What [`super::Kernel`] needs by all means, and the schedulers that it uses by itself.
const MODULES: &str = "ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_sh ip_vs_mh nf_conntrack ip_set \
                       ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet \
                       ip_set_bitmap_port xt_set";

/// Opens IPVS; loads the modules if there is none.
pub(super) async fn open_ipvs() -> Result<Ipvs, DataplaneError> {
    match Ipvs::open() {
        Err(IpvsError::NoIpvs) => {
            let loaded = load().await;
            match Ipvs::open() {
                Err(IpvsError::NoIpvs) => Err(missing("IPVS", loaded)),
                opened => Ok(opened?),
            }
        }
        opened => Ok(opened?),
    }
}

/// Opens ipset; loads the modules if there is none.
pub(super) async fn open_ipset() -> Result<Ipset, DataplaneError> {
    match Ipset::open() {
        Err(IpsetError::NoIpset) => {
            let loaded = load().await;
            match Ipset::open() {
                Err(IpsetError::NoIpset) => Err(missing("ipset", loaded)),
                opened => Ok(opened?),
            }
        }
        opened => Ok(opened?),
    }
}

/// Asks for the modules; why they cannot be loaded, if so. Some may be part of the kernel itself,
/// so what matters is what works afterwards.
async fn load() -> Result<(), String> {
    let mut command = Command::new("modprobe");
    let output = command.arg("-a").args(MODULES.split_whitespace()).output();
    let output = output.await.map_err(|error| format!("modprobe: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.trim().replace('\n', "; ");
    tracing::warn!(message, "modprobe failed");
    Err(message)
}

fn missing(what: &'static str, loaded: Result<(), String>) -> DataplaneError {
    let reason = match loaded {
        Ok(()) => "modprobe has loaded all modules, and yet".to_owned(),
        Err(message) => message,
    };
    DataplaneError::NoModule { what, reason }
}

impl DataplaneError {
    /// The command that an operator runs on the host where we may not.
    pub(crate) fn modprobe() -> String {
        format!("modprobe -a {MODULES}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_is_missing_why_and_what_to_do() {
        let error = missing("IPVS", Err("modprobe: not permitted".to_owned())).to_string();
        let start = "the kernel has no IPVS, and its modules cannot be loaded from here (modprobe: \
                     not permitted): on the host, run `modprobe -a ip_vs ip_vs_rr ";
        assert!(error.starts_with(start), "{error}");
    }
}
