// SPDX-License-Identifier: Apache-2.0

//! Capabilities of the machine under a test, and the one way to skip a test that needs more.

use std::env;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A requirement of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// User id 0: namespaces, addresses, rules.
    Root,
    /// A kernel with IP virtual servers.
    Ipvs,
    /// A kernel with nftables that masquerade.
    Nftables,
    /// A guest, of which settings of the whole kernel may be changed.
    Guest,
}

impl Need {
    fn is_met(self) -> bool {
        match self {
            Self::Root => is_root(),
            Self::Ipvs => has_ipvs(),
            Self::Nftables => has_nftables(),
            Self::Guest => ["uml", "debian"].contains(&lane().as_str()),
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::Root => "needs root",
            Self::Ipvs => "needs a kernel with IPVS (run it with e2e/lanes/uml)",
            Self::Nftables => "needs a kernel with nftables",
            Self::Guest => "changes settings of the kernel (run it with e2e/lanes/uml)",
        }
    }
}

/// True if the machine has all that `test` needs; else reports the first thing missing.
///
/// A test starts with `if !lane::provides("name", &[Need::Root]) { return; }`.
#[must_use]
pub fn provides(test: &str, needs: &[Need]) -> bool {
    match needs.iter().find(|need| !need.is_met()) {
        None => true,
        Some(need) => {
            missing(test, need.reason());
            false
        }
    }
}

/// Reports that `test` does not run here. Where `CI=true` a skip is a failure: it panics.
///
/// # Panics
/// In CI, where every lane meets the needs of its tests.
pub fn missing(test: &str, reason: &str) {
    assert!(
        env::var("CI").as_deref() != Ok("true"),
        "{test} cannot be skipped in CI: {reason}"
    );
    // Straight to the stream: the test harness hides the output of a passing test.
    let _ = writeln!(std::io::stdout(), "SKIP {test}: {reason}");
}

/// The lane that a runner in `e2e/lanes` chose, or `native`.
#[must_use]
pub fn lane() -> String {
    env::var("PORTOLAN_LANE").unwrap_or_else(|_| "native".into())
}

/// True if this process is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// True if this kernel has IPVS; loads the module if it is one.
#[must_use]
pub fn has_ipvs() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| ipvs_is_loaded() || (load_ipvs() && ipvs_is_loaded()))
}

/// True if this kernel takes a rule of nftables that masquerades; nothing is changed.
#[must_use]
pub fn has_nftables() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let rules = "table ip portolan-lane { chain post { \
                     type nat hook postrouting priority 99; masquerade fully-random; }; }";
        let checked = Command::new("nft").args(["--check", rules]).output();
        checked.is_ok_and(|checked| checked.status.success())
    })
}

fn ipvs_is_loaded() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

fn load_ipvs() -> bool {
    Command::new("modprobe")
        .args(["-q", "ip_vs"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
