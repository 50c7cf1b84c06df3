// SPDX-License-Identifier: Apache-2.0

//! Choice of the variant of iptables when none is asked for.
//!
//! A variant whose rules can be read may still be unable to write any: `iptables-nft-save` works on a
//! kernel whose nf_tables lacks the family, and without `CAP_NET_RAW`. So the choice ends with a trial.

use std::cmp::Reverse;
use std::fmt;
use std::path::Path;

use portolan_model::Family;

use super::tools::{AT_START, restore_command, run, save_command};
use crate::DataplaneError;

/// Chains in `mangle` by which the kubelet marks its variant (KEP-3178), and its canary.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// Creation and deletion of a chain of ours.
const TRIAL: [&str; 2] = [
    "*nat\n:PORTOLAN-TRIAL - [0:0]\nCOMMIT\n",
    "*nat\n:PORTOLAN-TRIAL - [0:0]\n-X PORTOLAN-TRIAL\nCOMMIT\n",
];

/// A variant, and what its tools print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    variant: &'static str,
    has_hint: bool,
    rules: usize,
}

/// The reason for a choice.
impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.has_hint, self.rules) {
            (true, _) => write!(f, "the kubelet uses it"),
            (false, 0) => write!(
                f,
                "no variant has rules, and this is the first that can write"
            ),
            (false, rules) => write!(f, "it has most rules ({rules}) of those that can write"),
        }
    }
}

/// Chooses the variant of the tools in a directory, by default the `PATH`: that of the kubelet, else the
/// one with most rules, else the host's default; the first of them that can write.
pub(super) async fn choose(directory: &Path) -> Result<&'static str, DataplaneError> {
    let mut first_error = None;
    let mut candidates = Vec::new();
    for variant in ["", "-nft", "-legacy"] {
        match read(directory, variant).await {
            Ok(candidate) => candidates.push(candidate),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    // Equals keep their order.
    candidates.sort_by_key(|candidate| Reverse((candidate.has_hint, candidate.rules)));
    for candidate in candidates {
        let Candidate { variant, .. } = candidate;
        match write(directory, variant).await {
            Ok(()) => {
                let tools = format!("iptables{variant}");
                tracing::info!(tools, reason = %candidate, "variant of iptables");
                return Ok(variant);
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| DataplaneError::Command {
        command: "iptables".to_owned(),
        message: "no variant works".to_owned(),
    }))
}

/// Reads the rules of both families. Tables that the kernel has not loaded are not read, which would
/// load them.
async fn read(directory: &Path, variant: &'static str) -> Result<Candidate, DataplaneError> {
    let mut error = None;
    let mut candidate = Candidate {
        variant,
        has_hint: false,
        rules: 0,
    };
    for family in Family::ALL {
        let program = directory.join(save_command(family, variant));
        match run(&program, &[], "", AT_START).await {
            Ok(text) => {
                let is_hint = |line: &str| HINTS.iter().any(|hint| line.starts_with(hint));
                candidate.has_hint |= text.lines().any(is_hint);
                candidate.rules += text.lines().filter(|l| l.starts_with("-A ")).count();
            }
            Err(failed) if error.is_none() => error = Some(failed),
            // Neither family works.
            Err(_) => return Err(error.unwrap_or_else(no_error)),
        }
    }
    Ok(candidate)
}

/// Creates and deletes a chain of either family.
async fn write(directory: &Path, variant: &str) -> Result<(), DataplaneError> {
    let mut error = None;
    for family in Family::ALL {
        match write_family(directory, variant, family).await {
            Ok(()) => return Ok(()),
            Err(failed) => error = error.or(Some(failed)),
        }
    }
    Err(error.unwrap_or_else(no_error))
}

async fn write_family(
    directory: &Path,
    variant: &str,
    family: Family,
) -> Result<(), DataplaneError> {
    let program = directory.join(restore_command(family, variant));
    for text in TRIAL {
        run(&program, &["--noflush", "-w", "30"], text, AT_START).await?;
    }
    Ok(())
}

/// Never used: there are two families.
fn no_error() -> DataplaneError {
    std::io::Error::other("no family").into()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Tools of a variant: one prints rules, the other does a deed.
    fn add(directory: &Path, variant: &str, rules: &str, deed: &str) {
        for family in Family::ALL {
            for (name, script) in [
                (save_command(family, variant), format!("echo '{rules}'")),
                (restore_command(family, variant), deed.to_owned()),
            ] {
                let path = directory.join(name);
                fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
    }

    const HINT: &str = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT";
    const CANARY: &str = "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT";
    const RULES: &str = "*nat\n-A PREROUTING -j DOCKER\n-A OUTPUT -j DOCKER\nCOMMIT";
    const WORKS: &str = "cat >/dev/null";
    const FAILS: &str = "echo no family >&2; exit 1";

    #[tokio::test]
    async fn hint_precedes_rules_and_a_variant_that_cannot_write_is_left_out() {
        for (nft, legacy, expected) in [
            (("", WORKS), ("", WORKS), "-nft"),
            (("", WORKS), (RULES, WORKS), "-legacy"),
            ((HINT, WORKS), (RULES, WORKS), "-nft"),
            ((RULES, WORKS), (CANARY, WORKS), "-legacy"),
            ((HINT, FAILS), (RULES, WORKS), "-legacy"),
            ((RULES, FAILS), ("", WORKS), "-legacy"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            add(directory.path(), "-nft", nft.0, nft.1);
            add(directory.path(), "-legacy", legacy.0, legacy.1);
            let chosen = choose(directory.path()).await.unwrap();
            assert_eq!(chosen, expected, "{nft:?} {legacy:?}");
        }
    }

    #[tokio::test]
    async fn default_tools_win_a_tie_and_one_family_suffices() {
        let directory = tempfile::tempdir().unwrap();
        for variant in ["", "-nft"] {
            add(directory.path(), variant, RULES, WORKS);
        }
        fs::remove_file(directory.path().join("iptables-save")).unwrap();
        fs::remove_file(directory.path().join("iptables-restore")).unwrap();
        fs::remove_file(directory.path().join("iptables-nft-save")).unwrap();
        assert_eq!(choose(directory.path()).await.unwrap(), "");
    }

    #[tokio::test]
    async fn first_failure_is_the_error_if_no_variant_works() {
        let directory = tempfile::tempdir().unwrap();
        let error = choose(directory.path()).await.unwrap_err().to_string();
        assert!(error.starts_with("iptables-save: No such file"), "{error}");
        add(directory.path(), "", "", FAILS);
        let error = choose(directory.path()).await.unwrap_err().to_string();
        assert!(
            error.contains("no family") || error.contains("No such file"),
            "{error}"
        );
    }
}
