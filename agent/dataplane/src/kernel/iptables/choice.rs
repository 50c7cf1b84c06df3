// SPDX-License-Identifier: Apache-2.0

//! Choice of the variant of iptables when none is asked for.
//!
//! A variant whose rules can be read may still be unable to write any: `iptables-nft-save` works on a
//! kernel whose nf_tables lacks the family, and without `CAP_NET_RAW`. So the choice ends with a trial.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use portolan_model::Family;

use super::run::run;
use super::tools::{restore_command, save_command};
use crate::DataplaneError;

/// Chains in `mangle` by which the kubelet marks its variant (KEP-3178), and its canary.
const HINTS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];

/// Creation and deletion of a chain of ours, one after the other.
const TRIAL: &str = "*nat\n:PORTOLAN-TRIAL - [0:0]\nCOMMIT\n\
                     *nat\n:PORTOLAN-TRIAL - [0:0]\n-X PORTOLAN-TRIAL\nCOMMIT\n";

/// Rules as the tools print them, by variant and family.
pub(super) type Saved = BTreeMap<(&'static str, Family), Vec<String>>;

/// A chosen variant.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) variant: &'static str,
    /// All rules that were read for it.
    pub(super) read: Saved,
}

/// A variant, and what its tools print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    variant: &'static str,
    has_hint: bool,
    rules: usize,
}

impl Candidate {
    fn new<'a>(variant: &'static str, lines: impl Iterator<Item = &'a str>) -> Self {
        let mut candidate = Self {
            variant,
            has_hint: false,
            rules: 0,
        };
        for line in lines {
            candidate.has_hint |= HINTS.iter().any(|hint| line.starts_with(hint));
            candidate.rules += usize::from(line.starts_with("-A "));
        }
        candidate
    }
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
pub(super) async fn choose(directory: &Path, deadline: Duration) -> Result<Choice, DataplaneError> {
    let (read, mut errors) = read_all(directory, deadline).await;
    let mut first_error = None;
    let mut candidates = Vec::new();
    for variant in VARIANTS {
        let of_variant = Family::ALL.map(|family| read.get(&(variant, family)));
        let [None, None] = of_variant else {
            let lines = of_variant.into_iter().flatten().flatten();
            candidates.push(Candidate::new(variant, lines.map(String::as_str)));
            continue;
        };
        // Neither family works.
        first_error = first_error.or_else(|| errors.remove(variant));
    }
    // Equals keep their order.
    candidates.sort_by_key(|candidate| Reverse((candidate.has_hint, candidate.rules)));
    for candidate in candidates {
        let Candidate { variant, .. } = candidate;
        match write(directory, variant, deadline).await {
            Ok(()) => {
                let tools = format!("iptables{variant}");
                tracing::info!(tools, reason = %candidate, "variant of iptables");
                return Ok(Choice { variant, read });
            }
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| DataplaneError::Command {
        command: "iptables".to_owned(),
        message: "no variant works".to_owned(),
    }))
}

/// The variants, the host's default first.
const VARIANTS: [&str; 3] = ["", "-nft", "-legacy"];

/// Reads the rules of all variants and both families at the same time. Tables that the kernel has not loaded are not
/// read, which would load them. Returns the first failure of each variant besides.
async fn read_all(
    directory: &Path,
    deadline: Duration,
) -> (Saved, BTreeMap<&'static str, DataplaneError>) {
    let default = default_of(directory);
    let wanted = VARIANTS
        .into_iter()
        .filter(|v| !v.is_empty() || default.is_none());
    let wanted = wanted.flat_map(|variant| Family::ALL.map(|family| (variant, family)));
    let runs = wanted.map(|(variant, family)| async move {
        let program = directory.join(save_command(family, variant));
        ((variant, family), run(&program, &[], "", deadline).await)
    });
    let (mut saved, mut errors) = (Saved::new(), BTreeMap::new());
    for ((variant, family), result) in join_all(runs).await {
        match result {
            Ok(text) => {
                let lines = text.lines().map(str::to_owned).collect();
                saved.insert((variant, family), lines);
            }
            Err(error) => {
                errors.entry(variant).or_insert(error);
            }
        }
    }
    for (family, default) in Family::ALL.into_iter().filter_map(|f| Some((f, default?))) {
        if let Some(lines) = saved.get(&(default, family)).cloned() {
            saved.insert(("", family), lines);
        }
    }
    (saved, errors)
}

/// The variant that the tools without a suffix are, if they are the same files: then one of the two is run.
fn default_of(directory: &Path) -> Option<&'static str> {
    let files = |variant| {
        let file = |family| find(directory, &save_command(family, variant));
        Some([file(Family::V4)?, file(Family::V6)?])
    };
    let [default, nft, legacy] = VARIANTS.map(files);
    default.as_ref()?;
    match (default == nft, default == legacy) {
        (true, false) => Some("-nft"),
        (false, true) => Some("-legacy"),
        _ => None,
    }
}

/// The file of a program in a directory, by default the `PATH`, with all links followed.
fn find(directory: &Path, program: &str) -> Option<PathBuf> {
    let found = |directory: &Path| directory.join(program).canonicalize().ok();
    if !directory.as_os_str().is_empty() {
        return found(directory);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).find_map(|directory| found(&directory))
}

/// Creates and deletes a chain of either family.
async fn write(directory: &Path, variant: &str, deadline: Duration) -> Result<(), DataplaneError> {
    let [first, second] =
        Family::ALL.map(|family| directory.join(restore_command(family, variant)));
    let args = ["--noflush", "-w", "30"];
    match run(&first, &args, TRIAL, deadline).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let second = run(&second, &args, TRIAL, deadline).await;
            second.map(drop).map_err(|_| error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tests::write_program;
    use super::super::tools::AT_START;
    use super::*;

    /// Tools of a variant: one prints rules, the other does a deed.
    fn add(directory: &Path, variant: &str, rules: &str, deed: &str) {
        for family in Family::ALL {
            for (name, script) in [
                (save_command(family, variant), format!("echo '{rules}'")),
                (restore_command(family, variant), deed.to_owned()),
            ] {
                let path = directory.join(name);
                write_program(&path, &format!("#!/bin/sh\n{script}\n"));
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
            let chosen = choose(directory.path(), AT_START).await.unwrap().variant;
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
        assert_eq!(
            choose(directory.path(), AT_START).await.unwrap().variant,
            ""
        );
    }

    #[tokio::test]
    async fn first_failure_is_the_error_if_no_variant_works() {
        let directory = tempfile::tempdir().unwrap();
        let error = choose(directory.path(), AT_START)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("iptables-save: No such file"), "{error}");
        add(directory.path(), "", "", FAILS);
        let error = choose(directory.path(), AT_START)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no family") || error.contains("No such file"),
            "{error}"
        );
    }
}
