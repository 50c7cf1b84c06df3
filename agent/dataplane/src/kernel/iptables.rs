//! The constant rules, through `iptables-restore`: at start, and when somebody changed them.

mod probe;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use portolan_model::Family;
use portolan_plan::{Jump, Rules};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use crate::DataplaneError;

/// Which of the two iptables to use. Both may be installed, and rules of one are not seen by the
/// other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IptablesMode {
    /// The one that kubelet uses if it left its hint, else the host's default if that works, else
    /// the other one.
    #[default]
    Auto,
    /// `iptables-nft`.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

/// Writes rules of both families and knows whether they are still as written.
#[derive(Debug)]
pub(crate) struct Iptables {
    /// `""`, `"-nft"` or `"-legacy"`: the part of the tools' names that tells them apart.
    variant: &'static str,
    written: Written,
    /// What was written, and not yet looked at as the tool shows it.
    fresh: BTreeMap<Family, Rules>,
    /// Where that is kept for the next run, if anywhere.
    record: Option<PathBuf>,
}

/// The rules of each family as written, and how the tool showed them right after.
type Written = BTreeMap<Family, (Rules, Vec<String>)>;

/// The longest that a tool may take: others may hold the lock for a while, but one that hangs must
/// not stop everything.
const PATIENCE: Duration = Duration::from_secs(120);

impl Iptables {
    pub(crate) async fn open(
        mode: IptablesMode,
        record: Option<PathBuf>,
    ) -> Result<Self, DataplaneError> {
        let variant = match mode {
            IptablesMode::Nft => "-nft",
            IptablesMode::Legacy => "-legacy",
            IptablesMode::Auto => choose().await?,
        };
        Ok(Self {
            variant,
            written: record.as_deref().map(read_record).unwrap_or_default(),
            fresh: BTreeMap::new(),
            record,
        })
    }

    /// The rules that are in place just as we wrote them; none before the first write.
    pub(crate) async fn observe(&self) -> Result<BTreeMap<Family, Rules>, DataplaneError> {
        let mut in_place = BTreeMap::new();
        for (family, (rules, fingerprint)) in &self.written {
            if fingerprint_of(rules, &self.save(*family).await?) == *fingerprint {
                in_place.insert(*family, rules.clone());
            }
        }
        Ok(in_place)
    }

    /// Writes our chains anew, each table atomically, and adds the jumps that are missing. They count
    /// as in place after [`Self::settle`].
    pub(crate) async fn write(
        &mut self,
        family: Family,
        rules: &Rules,
    ) -> Result<(), DataplaneError> {
        self.written.remove(&family);
        let before = self.save(family).await?;
        let missing: Vec<&Jump> = rules
            .jumps
            .iter()
            .filter(|jump| jump_line(jump, &before).is_none())
            .collect();
        let obsolete: Vec<(&str, &str)> = rules
            .obsolete
            .iter()
            .filter_map(|jump| Some((&*jump.table, jump_line(jump, &before)?)))
            .collect();
        self.restore(family, &rules.restore_input(&missing, &obsolete))
            .await?;
        self.fresh.insert(family, rules.clone());
        Ok(())
    }

    /// Looks at what was just written as the tool shows it, to know it again. Nobody has to wait
    /// for that.
    pub(crate) async fn settle(&mut self) -> Result<(), DataplaneError> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        for (family, rules) in std::mem::take(&mut self.fresh) {
            let fingerprint = fingerprint_of(&rules, &self.save(family).await?);
            self.written.insert(family, (rules, fingerprint));
        }
        self.keep_record();
        Ok(())
    }

    /// Takes our jumps and chains away; what else is in the tables stays.
    pub(crate) async fn remove(
        &mut self,
        family: Family,
        rules: &Rules,
    ) -> Result<(), DataplaneError> {
        self.written
            .retain(|of, (written, _)| *of != family || !written.shares_chain(rules));
        self.fresh
            .retain(|of, fresh| *of != family || !fresh.shares_chain(rules));
        let saved = self.save(family).await?;
        let text = removal(rules, &saved);
        if text.is_empty() {
            Ok(())
        } else {
            self.restore(family, &text).await
        }
    }

    /// Deletes our jumps, which have no comment, where somebody else's of the same aim stand beside
    /// them.
    pub(super) async fn remove_second_jumps(
        &self,
        family: Family,
        rules: &Rules,
    ) -> Result<(), DataplaneError> {
        let text = second_jumps(rules, &self.save(family).await?);
        if text.is_empty() {
            return Ok(());
        }
        self.restore(family, &text).await
    }

    /// Keeps what was written, so that the next run finds the rules in place and need not write them.
    /// That it is from an earlier life of the kernel does no harm: it says what to see there.
    fn keep_record(&self) {
        let Some(path) = &self.record else { return };
        let new = path.with_extension("new");
        let written = serde_json::to_vec(&self.written)
            .map_err(std::io::Error::other)
            .and_then(|content| {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(&new, content)
            })
            .and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error,
                "what rules are in place cannot be kept: an agent that starts anew writes them anew");
        }
    }

    /// All tables in one run of the tool: starting it costs more than what others have in there. A
    /// table that nobody has used is left out, and has nothing of ours.
    async fn save(&self, family: Family) -> Result<Vec<String>, DataplaneError> {
        let text = run(&save_command(family, self.variant), &[], "").await?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    async fn restore(&self, family: Family, text: &str) -> Result<(), DataplaneError> {
        let command = restore_command(family, self.variant);
        // -w: others hold the xtables lock for up to seconds on large hosts.
        run(&command, &["--noflush", "-w", "30"], text)
            .await
            .map(drop)
    }
}

fn save_command(family: Family, variant: &str) -> String {
    match family {
        Family::V4 => format!("iptables{variant}-save"),
        Family::V6 => format!("ip6tables{variant}-save"),
    }
}

fn restore_command(family: Family, variant: &str) -> String {
    match family {
        Family::V4 => format!("iptables{variant}-restore"),
        Family::V6 => format!("ip6tables{variant}-restore"),
    }
}

fn read_record(path: &Path) -> Written {
    let Ok(content) = std::fs::read(path) else {
        return Written::default();
    };
    serde_json::from_slice(&content).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "no record of rules: they are written anew");
        Written::default()
    })
}

/// The variant to use when none was asked for.
async fn choose() -> Result<&'static str, DataplaneError> {
    let mut first_error = None;
    let mut usable = None;
    for variant in ["", "-nft", "-legacy"] {
        // To look at a table of the legacy variant makes the kernel load it.
        if variant == "-legacy" && usable.is_some() && !has_legacy_tables() {
            continue;
        }
        if let Err(error) = can_read(variant).await {
            first_error = first_error.or(Some(error));
            continue;
        }
        usable = usable.or(Some(variant));
        // kubelet creates this chain for nothing else than to say which variant it uses (KEP-3178).
        let hint = run(&save_command(Family::V4, variant), &["-t", "mangle"], "").await;
        if !variant.is_empty() && hint.is_ok_and(|text| text.contains(":KUBE-IPTABLES-HINT")) {
            return Ok(variant);
        }
    }
    match (usable, first_error) {
        (Some(variant), _) => Ok(variant),
        (None, Some(error)) => Err(error),
        (None, None) => unreachable!("three variants were tried"),
    }
}

/// Whether the tools of a variant can read rules of any family.
async fn can_read(variant: &str) -> Result<(), DataplaneError> {
    let of_v4 = run(&save_command(Family::V4, variant), &["-t", "nat"], "").await;
    let Err(error) = of_v4 else { return Ok(()) };
    let of_v6 = run(&save_command(Family::V6, variant), &["-t", "nat"], "").await;
    of_v6.map(drop).map_err(|_| error)
}

/// Whether anybody uses tables of the legacy variant.
fn has_legacy_tables() -> bool {
    let names = std::fs::read_to_string("/proc/net/ip_tables_names");
    names.is_ok_and(|names| !names.is_empty())
}

async fn run(command: &str, args: &[&str], input: &str) -> Result<String, DataplaneError> {
    let failed = |message: String| DataplaneError::Command {
        command: command.to_owned(),
        message,
    };
    let mut child = Command::new(command)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let talk = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A tool that does not read its input has said why it ended.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = timeout(PATIENCE, talk)
        .await
        .map_err(|_| failed(format!("has not ended in {PATIENCE:?}: killed")))?
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The line of a saved ruleset that holds a jump, whatever matches and comments it has.
fn jump_line<'a>(jump: &Jump, saved: &'a [String]) -> Option<&'a str> {
    let start = format!("-A {} ", jump.chain);
    let end = format!("-j {}", jump.target);
    in_table(saved, &jump.table).find(|line| line.starts_with(&start) && line.ends_with(&end))
}

/// The `iptables-restore` input that takes away those of our jumps that have a second one.
fn second_jumps(rules: &Rules, saved: &[String]) -> String {
    let mut text = String::new();
    for table in &rules.tables {
        let jumps = rules.jumps.iter().filter(|jump| jump.table == table.name);
        let lines: Vec<String> = jumps
            .filter_map(|jump| {
                let (chain, target) = (&jump.chain, &jump.target);
                let ours = format!("-A {chain} -j {target}");
                let (start, end) = (format!("-A {chain} "), format!(" -j {target}"));
                let alike = |line: &&str| line.starts_with(&start) && line.ends_with(&end);
                let alike: Vec<&str> = in_table(saved, &table.name).filter(alike).collect();
                let is_second = alike.contains(&&*ours) && alike.iter().any(|line| *line != ours);
                is_second.then(|| format!("-D {chain} -j {target}\n"))
            })
            .collect();
        if !lines.is_empty() {
            text.push_str(&format!("*{}\n{}COMMIT\n", table.name, lines.concat()));
        }
    }
    text
}

/// The lines of one table.
fn in_table<'a>(saved: &'a [String], table: &str) -> impl Iterator<Item = &'a str> {
    let mut current = "";
    saved.iter().map(String::as_str).filter(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            current = name;
        }
        current == table
    })
}

/// Our part of a saved ruleset: our chains and the jumps to them, counters left out.
fn fingerprint_of(rules: &Rules, saved: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    for table in &rules.tables {
        for (chain, _) in &table.chains {
            let (declared, rule) = (format!(":{chain} "), format!("-A {chain} "));
            let of_chain = in_table(saved, &table.name).filter_map(|line| {
                if line.starts_with(&declared) {
                    Some(declared.clone())
                } else {
                    line.starts_with(&rule).then(|| line.to_owned())
                }
            });
            lines.extend(of_chain);
        }
    }
    lines.extend(
        rules
            .jumps
            .iter()
            .filter_map(|jump| jump_line(jump, saved))
            .map(str::to_owned),
    );
    lines
}

/// The `iptables-restore` input that takes away what there is of our jumps and chains.
fn removal(rules: &Rules, saved: &[String]) -> String {
    let mut text = String::new();
    for table in &rules.tables {
        let exists = |chain: &str| {
            let declared = format!(":{chain} ");
            in_table(saved, &table.name).any(|line| line.starts_with(&declared))
        };
        let chains: Vec<&String> = table
            .chains
            .iter()
            .map(|(chain, _)| chain)
            .filter(|chain| exists(chain))
            .collect();
        let jumps = rules.jumps.iter().chain(&rules.obsolete);
        let jumps = jumps.filter(|jump| jump.table == table.name);
        let jumps: Vec<&str> = jumps.filter_map(|jump| jump_line(jump, saved)).collect();
        if chains.is_empty() && jumps.is_empty() {
            continue;
        }
        text.push_str(&format!("*{}\n", table.name));
        // Declaring a chain empties it, so that none refers to another when they are deleted.
        chains
            .iter()
            .for_each(|chain| text.push_str(&format!(":{chain} - [0:0]\n")));
        jumps
            .iter()
            .for_each(|line| text.push_str(&format!("-D{}\n", &line[2..])));
        chains
            .iter()
            .for_each(|chain| text.push_str(&format!("-X {chain}\n")));
        text.push_str("COMMIT\n");
    }
    text
}

#[cfg(test)]
mod tests;
