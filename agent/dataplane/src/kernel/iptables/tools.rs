// SPDX-License-Identifier: Apache-2.0

//! `iptables-save` and `iptables-restore`, which may fail or hang.

use std::collections::BTreeMap;
#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use portolan_model::Family;

use super::choice::{Choice, Saved, choose};
use super::run::run;
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
    /// `""`, `"-nft"` or `"-legacy"`, a part of the tools' names; chosen on first use if `None`.
    variant: Option<&'static str>,
    /// Directory of the tools; by default the `PATH`.
    directory: PathBuf,
    deadline: Duration,
    /// Tool that hung last, by family, and when.
    hung: BTreeMap<Family, (String, Instant)>,
    /// Reason why no variant could be chosen, and when.
    undecided: Option<(String, Instant)>,
    /// Rules of all variants that were read for the choice, until somebody asks for them.
    read: Saved,
}

/// A run of a tool.
struct Job {
    family: Family,
    command: String,
    args: &'static [&'static str],
    input: String,
}

impl Tools {
    pub(super) fn new(variant: Option<&'static str>) -> Self {
        Self {
            variant,
            directory: PathBuf::new(),
            deadline: DEADLINE,
            hung: BTreeMap::new(),
            undecided: None,
            read: Saved::new(),
        }
    }

    /// Tools in a directory, with a deadline.
    #[cfg(test)]
    pub(super) fn of(directory: &Path, deadline: Duration) -> Self {
        Self {
            directory: directory.to_owned(),
            deadline,
            ..Self::new(Some(""))
        }
    }

    /// Tools in a directory, whose variant is not chosen yet.
    #[cfg(test)]
    pub(super) fn undecided(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            ..Self::new(None)
        }
    }

    /// The variant, chosen now if it was not before, but not right after a choice that failed.
    pub(super) async fn variant(&mut self) -> Result<&'static str, DataplaneError> {
        self.choose(self.deadline).await
    }

    /// Like [`Self::variant`], with another deadline of each tool.
    pub(super) async fn choose(
        &mut self,
        deadline: Duration,
    ) -> Result<&'static str, DataplaneError> {
        if let Some(variant) = self.variant {
            return Ok(variant);
        }
        if let Some((message, at)) = &self.undecided
            && at.elapsed() < REST
        {
            return Err(DataplaneError::Undecided(message.clone()));
        }
        match choose(&self.directory, deadline).await {
            Ok(Choice { variant, read }) => {
                (self.variant, self.read) = (Some(variant), read);
                Ok(variant)
            }
            Err(error) => {
                self.undecided = Some((error.to_string(), Instant::now()));
                Err(error)
            }
        }
    }

    /// Prints all tables in one run of the tool: starting it costs more than the rules of others. Unused
    /// tables are left out.
    pub(super) async fn save(&mut self, family: Family) -> Result<Vec<String>, DataplaneError> {
        let mut saved = self.save_each(&[family]).await;
        saved.pop().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// The rules of several families, read at the same time: of each in the given order.
    pub(super) async fn save_each(
        &mut self,
        families: &[Family],
    ) -> Vec<Result<Vec<String>, DataplaneError>> {
        if families.is_empty() {
            return Vec::new();
        }
        let variant = match self.variant().await {
            Ok(variant) => variant,
            Err(error) => {
                let failed = |_: &Family| Err(DataplaneError::Undecided(error.to_string()));
                return families.iter().map(failed).collect();
            }
        };
        let job = |family: &Family| Job {
            family: *family,
            command: save_command(*family, variant),
            args: &[],
            input: String::new(),
        };
        let texts = self.run(families.iter().map(job).collect()).await;
        let saved = texts.into_iter();
        saved.map(|text| text.map(|text| lines(&text))).collect()
    }

    /// Writes rules. Families are written one by one: some versions of the legacy variant wait for each other's
    /// lock by sleeping.
    pub(super) async fn restore(
        &mut self,
        family: Family,
        text: &str,
    ) -> Result<(), DataplaneError> {
        let job = Job {
            family,
            command: restore_command(family, self.variant().await?),
            args: &["--noflush", "-w", LOCK],
            input: text.to_owned(),
        };
        let mut written = self.run(vec![job]).await;
        written.pop().map_or(Ok(()), |written| written.map(drop))
    }

    /// Checks that both tools work, without writing. Nothing waits at start, so the deadline is longer.
    pub(super) async fn try_out(
        &mut self,
        family: Family,
        text: &str,
    ) -> Result<(), DataplaneError> {
        let variant = self.variant().await?;
        let restore = self.directory.join(restore_command(family, variant));
        let args = ["--noflush", "--test", "-w", "30"];
        run(&restore, &args, text, AT_START).await?;
        self.try_reading(family).await
    }

    /// Checks that the tool that reads works, if it was not just run.
    pub(super) async fn try_reading(&mut self, family: Family) -> Result<(), DataplaneError> {
        let variant = self.variant().await?;
        if self.read.contains_key(&(variant, family)) {
            return Ok(());
        }
        let save = self.directory.join(save_command(family, variant));
        let text = run(&save, &[], "", AT_START).await?;
        self.read.insert((variant, family), lines(&text));
        Ok(())
    }

    /// Writes rules when nothing waits for them.
    pub(super) async fn write_at_start(
        &mut self,
        family: Family,
        text: &str,
    ) -> Result<(), DataplaneError> {
        let restore = restore_command(family, self.variant().await?);
        let args = ["--noflush", "-w", "30"];
        let restore = self.directory.join(restore);
        run(&restore, &args, text, AT_START).await.map(drop)
    }

    /// The rules of a family in every variant that works.
    pub(super) async fn save_all_variants(&mut self, family: Family) -> Vec<Vec<String>> {
        let Ok(own) = self.variant().await else {
            return Vec::new();
        };
        let (mut all, kept) = std::mem::take(&mut self.read)
            .into_iter()
            .partition::<Saved, _>(|((_, of), _)| *of == family);
        self.read = kept;
        // Reading a table of the legacy variant makes the kernel load it.
        let legacy = has_legacy_tables().then_some("-legacy");
        let mut missing: Vec<_> = [Some("-nft"), legacy, Some(own)]
            .into_iter()
            .flatten()
            .filter(|variant| !all.contains_key(&(*variant, family)))
            .collect();
        missing.dedup();
        let programs = missing.into_iter().map(|variant| {
            let save = self.directory.join(save_command(family, variant));
            async move { (variant, run(&save, &[], "", AT_START).await) }
        });
        for (variant, text) in join_all(programs).await {
            if let Ok(text) = text {
                all.insert((variant, family), lines(&text));
            }
        }
        // The tools without a suffix are one of the two.
        if all.len() > 1 {
            all.remove(&("", family));
        }
        all.into_values().collect()
    }

    /// Runs tools at the same time, but none of a family of which one hung a moment ago.
    async fn run(&mut self, jobs: Vec<Job>) -> Vec<Result<String, DataplaneError>> {
        let (directory, deadline, hung) = (&self.directory, self.deadline, &self.hung);
        let started = jobs.iter().map(|job| async move {
            if let Some((command, at)) = hung.get(&job.family)
                && at.elapsed() < REST
            {
                let command = command.clone();
                return Err(DataplaneError::Hangs { command, deadline });
            }
            let program = directory.join(&job.command);
            let result = run(&program, job.args, &job.input, deadline).await;
            Ok((job, result))
        });
        let mut results = Vec::with_capacity(jobs.len());
        for ended in join_all(started).await {
            let (job, result) = match ended {
                Ok(ended) => ended,
                Err(rests) => {
                    results.push(Err(rests));
                    continue;
                }
            };
            self.hung.remove(&job.family);
            if matches!(result, Err(DataplaneError::Hangs { .. })) {
                let hung = (job.command.clone(), Instant::now());
                self.hung.insert(job.family, hung);
            }
            results.push(result);
        }
        results
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
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

/// Returns `true` if the kernel has tables of the legacy variant.
fn has_legacy_tables() -> bool {
    let names = std::fs::read_to_string("/proc/net/ip_tables_names");
    names.is_ok_and(|names| !names.is_empty())
}
