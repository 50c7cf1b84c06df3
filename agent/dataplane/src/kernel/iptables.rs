// SPDX-License-Identifier: Apache-2.0

//! Constant rules through `iptables-restore`: written at start, and after changes by others.

mod choice;
mod kube_proxy;
mod probe;
mod run;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use portolan_model::Family;
use portolan_plan::{Jump, Rules, Table};

use super::blocking::blocking;
use crate::DataplaneError;
use tools::Tools;

/// Variant of iptables. Both may be installed, and neither shows the other's rules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IptablesMode {
    /// That of the kubelet, otherwise the one with most rules, otherwise the host's default; the first of
    /// them that can write.
    #[default]
    Auto,
    /// `iptables-nft`.
    Nft,
    /// `iptables-legacy`.
    Legacy,
}

/// Writes the rules of both families and detects changes of them.
#[derive(Debug)]
pub(crate) struct Iptables {
    tools: Tools,
    written: Written,
    /// Rules written and not yet read back.
    fresh: BTreeMap<Family, Rules>,
    /// Families whose rules were in place at the last successful reading.
    seen: BTreeSet<Family>,
    /// Families whose rules were written without the one about imports, which the kernel refused.
    unclamped: BTreeSet<Family>,
    /// File with `written` for the next run, if any.
    record: Option<PathBuf>,
}

/// Rules of each family as written, and as the tool printed them right after.
type Written = BTreeMap<Family, (Rules, Vec<String>)>;

impl Iptables {
    /// Tools whose variant is chosen on first use, unless the mode says it.
    pub(crate) fn new(mode: IptablesMode, record: Option<PathBuf>) -> Self {
        let variant = match mode {
            IptablesMode::Nft => Some("-nft"),
            IptablesMode::Legacy => Some("-legacy"),
            IptablesMode::Auto => None,
        };
        Self::with(Tools::new(variant), record)
    }

    /// Returns `true` if this run or an earlier one has written rules.
    pub(crate) fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Chooses the variant now.
    pub(crate) async fn choose(&mut self) -> Result<(), DataplaneError> {
        self.tools.choose(tools::AT_START).await.map(drop)
    }

    fn with(tools: Tools, record: Option<PathBuf>) -> Self {
        Self {
            tools,
            written: record.as_deref().map(read_record).unwrap_or_default(),
            fresh: BTreeMap::new(),
            seen: BTreeSet::new(),
            unclamped: BTreeSet::new(),
            record,
        }
    }

    /// The rules in place exactly as written. Rules that cannot be read count as they did at the last
    /// reading: other work does not wait for a tool.
    pub(crate) async fn observe(&mut self) -> BTreeMap<Family, Rules> {
        let mut in_place = BTreeMap::new();
        let families: Vec<Family> = self.written.keys().copied().collect();
        let saved = self.tools.save_each(&families).await;
        for ((family, (rules, fingerprint)), saved) in self.written.iter().zip(saved) {
            match saved {
                Ok(saved) if fingerprint_of(rules, &saved) == *fingerprint => {
                    self.seen.insert(*family);
                    in_place.insert(*family, rules.clone());
                }
                Ok(_) => drop(self.seen.remove(family)),
                Err(error) if self.seen.contains(family) => {
                    tracing::warn!(%family, %error,
                        "rules cannot be read: assumed unchanged");
                    in_place.insert(*family, rules.clone());
                }
                Err(_) => {}
            }
        }
        // Rules that were just written and could not be read back.
        for (family, rules) in &self.fresh {
            if self.tools.save(*family).await.is_err() {
                in_place.insert(*family, rules.clone());
            }
        }
        in_place
    }

    /// Rewrites our chains of each family, each table atomically, and adds missing jumps. They count as in place after
    /// [`Self::settle`].
    pub(crate) async fn write(
        &mut self,
        all: &[(Family, &Rules)],
    ) -> Vec<Result<(), DataplaneError>> {
        for (family, _) in all {
            self.written.remove(family);
            self.fresh.remove(family);
            self.seen.remove(family);
        }
        let families: Vec<Family> = all.iter().map(|(family, _)| *family).collect();
        let before = self.tools.save_each(&families).await;
        let mut results = Vec::with_capacity(all.len());
        for ((family, rules), before) in all.iter().zip(before) {
            results.push(match before {
                Ok(before) => self.write_one(*family, rules, &before).await,
                Err(error) => Err(error),
            });
        }
        results
    }

    async fn write_one(
        &mut self,
        family: Family,
        rules: &Rules,
        before: &[String],
    ) -> Result<(), DataplaneError> {
        match self.tools.restore(family, &input(rules, before)).await {
            Err(DataplaneError::Command { .. }) if rules.clamps() => {
                let others = rules.without_clamp();
                self.tools.restore(family, &input(&others, before)).await?;
                self.write_whole(family, rules).await?;
            }
            Ok(()) => drop(self.unclamped.remove(&family)),
            failed => return failed,
        }
        // Those that were asked for: nobody asks for them again.
        self.fresh.insert(family, rules.clone());
        Ok(())
    }

    /// Writes all rules once more, after those without a clamp were written: the tool may have failed for another
    /// reason, such as a lock that somebody held. Rules that the kernel refuses are not asked for again. An error has
    /// all of them asked for again.
    async fn write_whole(&mut self, family: Family, rules: &Rules) -> Result<(), DataplaneError> {
        let before = self.tools.save(family).await?;
        match self.tools.restore(family, &input(rules, &before)).await {
            Ok(()) => drop(self.unclamped.remove(&family)),
            Err(error) if is_refusal(&error) => self.say_unclamped(family, &error),
            failed => return failed,
        }
        Ok(())
    }

    fn say_unclamped(&mut self, family: Family, error: &DataplaneError) {
        if self.unclamped.insert(family) {
            tracing::warn!(%family, %error,
                "the rule of --clamp-remote-mss is refused (no xt_TCPMSS?): connections to other clusters need the ICMP \
                 messages of smaller links");
        }
    }

    /// Reads back rules that were just written, to recognise them later. Nothing waits for it.
    pub(crate) async fn settle(&mut self) -> Result<(), DataplaneError> {
        if self.fresh.is_empty() {
            return Ok(());
        }
        let families: Vec<Family> = self.fresh.keys().copied().collect();
        let saved = self.tools.save_each(&families).await;
        let mut failed = None;
        for (family, saved) in families.into_iter().zip(saved) {
            match (saved, self.fresh.remove(&family)) {
                (Ok(saved), Some(rules)) => {
                    let fingerprint = fingerprint_of(&rules, &saved);
                    self.written.insert(family, (rules, fingerprint));
                    self.seen.insert(family);
                }
                (Err(error), Some(rules)) => {
                    self.fresh.insert(family, rules);
                    failed = Some(error);
                }
                (_, None) => {}
            }
        }
        blocking(|| self.keep_record());
        failed.map_or(Ok(()), Err)
    }

    /// Removes our jumps and chains; other rules stay.
    pub(crate) async fn remove(
        &mut self,
        family: Family,
        rules: &Rules,
    ) -> Result<(), DataplaneError> {
        self.written
            .retain(|of, (written, _)| *of != family || !written.shares_chain(rules));
        self.fresh
            .retain(|of, fresh| *of != family || !fresh.shares_chain(rules));
        let saved = self.tools.save(family).await?;
        let text = removal(rules, &saved);
        if text.is_empty() {
            Ok(())
        } else {
            self.tools.restore(family, &text).await
        }
    }

    /// Deletes our jumps, which have no comment, next to foreign jumps to the same chain.
    pub(super) async fn remove_second_jumps(
        &mut self,
        family: Family,
        rules: &Rules,
    ) -> Result<(), DataplaneError> {
        let text = second_jumps(rules, &self.tools.save(family).await?);
        if text.is_empty() {
            return Ok(());
        }
        self.tools.restore(family, &text).await
    }

    /// Saves the written rules, so that the next run recognises them. A file from before a reboot does no
    /// harm: it only states what to expect.
    fn keep_record(&self) {
        let Some(path) = &self.record else { return };
        let new = path.with_extension("new");
        // Those that lack a rule are written again by the next run, which says so.
        let whole = self.written.iter();
        let whole = whole.filter(|(family, _)| !self.unclamped.contains(family));
        let written = serde_json::to_vec(&whole.collect::<BTreeMap<_, _>>())
            .map_err(std::io::Error::other)
            .and_then(|content| {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                std::fs::write(&new, content)
            })
            .and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error,
                "record of rules cannot be saved: a restarted agent writes them again");
        }
    }
}

/// Returns `true` if the kernel refused rules. A tool that was killed or that got no lock has not
/// asked it. The last line counts: some versions also say that they wait for the lock, and get it.
fn is_refusal(error: &DataplaneError) -> bool {
    let DataplaneError::Command { message, .. } = error else {
        return false;
    };
    let last = message.lines().next_back();
    last.is_none_or(|line| !line.contains("xtables lock"))
}

/// Input of `iptables-restore` that writes rules beside those that are there.
fn input(rules: &Rules, before: &[String]) -> String {
    let missing: Vec<&Jump> = rules
        .jumps
        .iter()
        .filter(|jump| jump_line(jump, before).is_none())
        .collect();
    let obsolete: Vec<(&str, &str)> = rules
        .obsolete
        .iter()
        .filter_map(|jump| Some((&*jump.table, jump_line(jump, before)?)))
        .collect();
    rules.restore_input(&missing, &obsolete)
}

fn read_record(path: &Path) -> Written {
    let Ok(content) = std::fs::read(path) else {
        return Written::default();
    };
    serde_json::from_slice(&content).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "record of rules cannot be read: they are written again");
        Written::default()
    })
}

/// The first line of a saved ruleset with a jump, with any matches and comments.
fn jump_line<'a>(jump: &Jump, saved: &'a [String]) -> Option<&'a str> {
    jump_lines(jump, saved).next()
}

/// All such lines: a kube-proxy beside the agent has a jump of its own to the same chain.
fn jump_lines<'a>(jump: &Jump, saved: &'a [String]) -> impl Iterator<Item = &'a str> {
    let start = format!("-A {} ", jump.chain);
    let end = format!(" -j {}", jump.target);
    in_table(saved, &jump.table)
        .filter(move |line| line.starts_with(&start) && line.ends_with(&end))
}

/// Input of `iptables-restore` that deletes our jumps next to foreign ones to the same chain.
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

/// Our chains in a saved ruleset and the jumps to them, without counters.
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

/// Returns `true` if a line is a rule that jumps or goes to a chain.
fn leads_to(line: &str, chain: &str) -> bool {
    let before = line.strip_suffix(chain);
    before.is_some_and(|rule| rule.ends_with(" -j ") || rule.ends_with(" -g "))
}

/// Returns `true` if rules that stay lead to a chain of ours, such as those of the plugin `portmap` of CNI with
/// `externalSetMarkChain`. `jumps` are the lines that go.
fn is_used(chain: &str, table: &Table, jumps: &[&str], saved: &[String]) -> bool {
    let is_ours = |of: &str| table.chains.iter().any(|(ours, _)| ours == of);
    in_table(saved, &table.name).any(|line| {
        let rule = line.strip_prefix("-A ").and_then(|r| r.split_once(' '));
        let stays = rule.is_some_and(|(of, _)| !is_ours(of)) && !jumps.contains(&line);
        stays && leads_to(line, chain)
    })
}

/// Returns `true` if rules of a chain lead to others of ours, or refer to sets: neither could be deleted.
fn needs_others(chain: &str, table: &Table, saved: &[String]) -> bool {
    let rule = format!("-A {chain} ");
    let mut rules = in_table(saved, &table.name).filter(|line| line.starts_with(&rule));
    rules.any(|line| {
        let mut ours = table.chains.iter();
        line.contains("-set ") || ours.any(|(other, _)| leads_to(line, other))
    })
}

/// Input of `iptables-restore` that removes our existing jumps and chains. The kernel refuses the whole table if a rule
/// leads to a chain that shall go: a chain that others use stays.
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
        let jumps: Vec<&str> = jumps.flat_map(|jump| jump_lines(jump, saved)).collect();
        let (used, chains): (Vec<&String>, Vec<&String>) = chains
            .into_iter()
            .partition(|chain| is_used(chain, table, &jumps, saved));
        for chain in &used {
            tracing::info!(table = %table.name, %chain, "rules of other programs use a chain of ours: it stays");
        }
        let needing = |chain: &&String| needs_others(chain, table, saved);
        let emptied: Vec<&String> = used.into_iter().filter(needing).collect();
        if chains.is_empty() && emptied.is_empty() && jumps.is_empty() {
            continue;
        }
        text.push_str(&format!("*{}\n", table.name));
        // Declaring a chain empties it, so that no rule refers to another one when it is deleted.
        chains
            .iter()
            .chain(&emptied)
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
