// SPDX-License-Identifier: Apache-2.0

//! `iptables-save` and `iptables-restore`, which may fail or hang.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use portolan_model::Family;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::DataplaneError;

/// Deadline of a tool, for which endpoints wait.
const DEADLINE: Duration = Duration::from_secs(5);
/// Deadline of a tool at start, when nothing waits.
pub(super) const AT_START: Duration = Duration::from_secs(60);
/// Seconds that a tool waits for the xtables lock, which others hold for seconds on large hosts; below the
/// deadline, so that the tool reports the reason.
const LOCK: &str = "4";
/// Pause of a family's tools after one of them hung.
const REST: Duration = Duration::from_secs(30);

/// The tools of one variant.
#[derive(Debug)]
pub(super) struct Tools {
    /// `""`, `"-nft"` or `"-legacy"`, a part of the tools' names.
    variant: &'static str,
    /// Directory of the tools; by default the `PATH`.
    directory: PathBuf,
    deadline: Duration,
    /// Tool that hung last, by family, and when.
    hung: BTreeMap<Family, (String, Instant)>,
}

impl Tools {
    pub(super) fn new(variant: &'static str) -> Self {
        Self {
            variant,
            directory: PathBuf::new(),
            deadline: DEADLINE,
            hung: BTreeMap::new(),
        }
    }

    /// Tools in a directory, with a deadline.
    #[cfg(test)]
    pub(super) fn of(directory: &Path, deadline: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            deadline,
            ..Self::new("")
        }
    }

    /// Prints all tables in one run of the tool: starting it costs more than the rules of others. Unused
    /// tables are left out.
    pub(super) async fn save(&mut self, family: Family) -> Result<Vec<String>, DataplaneError> {
        let command = save_command(family, self.variant);
        let text = self.run(family, &command, &[], "").await?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    pub(super) async fn restore(
        &mut self,
        family: Family,
        text: &str,
    ) -> Result<(), DataplaneError> {
        let command = restore_command(family, self.variant);
        let args = ["--noflush", "-w", LOCK];
        self.run(family, &command, &args, text).await.map(drop)
    }

    /// Checks that both tools work, without writing. Nothing waits at start, so the deadline is longer.
    pub(super) async fn try_out(&self, family: Family, text: &str) -> Result<(), DataplaneError> {
        let restore = self.directory.join(restore_command(family, self.variant));
        let args = ["--noflush", "--test", "-w", "30"];
        run(&restore, &args, text, AT_START).await?;
        let save = self.directory.join(save_command(family, self.variant));
        run(&save, &[], "", AT_START).await.map(drop)
    }

    /// Writes rules when nothing waits for them.
    pub(super) async fn write_at_start(
        &self,
        family: Family,
        text: &str,
    ) -> Result<(), DataplaneError> {
        let restore = self.directory.join(restore_command(family, self.variant));
        let args = ["--noflush", "-w", "30"];
        run(&restore, &args, text, AT_START).await.map(drop)
    }

    /// The rules of a family in every variant that works.
    pub(super) async fn save_all_variants(&self, family: Family) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        // Reading a table of the legacy variant makes the kernel load it.
        let legacy = has_legacy_tables().then_some("-legacy");
        for variant in [Some("-nft"), legacy, Some(self.variant)]
            .into_iter()
            .flatten()
        {
            // The tools without a suffix are one of the two.
            if variant.is_empty() && !all.is_empty() {
                continue;
            }
            let save = self.directory.join(save_command(family, variant));
            if let Ok(text) = run(&save, &[], "", AT_START).await {
                all.push(text.lines().map(str::to_owned).collect());
            }
        }
        all
    }

    async fn run(
        &mut self,
        family: Family,
        command: &str,
        args: &[&str],
        input: &str,
    ) -> Result<String, DataplaneError> {
        if let Some((command, at)) = self.hung.get(&family)
            && at.elapsed() < REST
        {
            return Err(DataplaneError::Hangs {
                command: command.clone(),
                deadline: self.deadline,
            });
        }
        self.hung.remove(&family);
        let program = self.directory.join(command);
        let result = run(&program, args, input, self.deadline).await;
        if matches!(result, Err(DataplaneError::Hangs { .. })) {
            self.hung
                .insert(family, (command.to_owned(), Instant::now()));
        }
        result
    }
}

pub(super) fn save_command(family: Family, variant: &str) -> String {
    match family {
        Family::V4 => format!("iptables{variant}-save"),
        Family::V6 => format!("ip6tables{variant}-save"),
    }
}

pub(super) fn restore_command(family: Family, variant: &str) -> String {
    match family {
        Family::V4 => format!("iptables{variant}-restore"),
        Family::V6 => format!("ip6tables{variant}-restore"),
    }
}

fn name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn failure(program: &Path, message: String) -> DataplaneError {
    DataplaneError::Command {
        command: name(program),
        message,
    }
}

/// Returns `true` if the kernel has tables of the legacy variant.
fn has_legacy_tables() -> bool {
    let names = std::fs::read_to_string("/proc/net/ip_tables_names");
    names.is_ok_and(|names| !names.is_empty())
}

pub(super) async fn run(
    program: &Path,
    args: &[&str],
    input: &str,
    deadline: Duration,
) -> Result<String, DataplaneError> {
    let failed = |message: String| failure(program, message);
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that ended without reading its input has reported the reason.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    // Dropping the future kills the child.
    let output = timeout(deadline, talk)
        .await
        .map_err(|_| DataplaneError::Hangs {
            command: name(program),
            deadline,
        })?
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
