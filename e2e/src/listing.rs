// SPDX-License-Identifier: Apache-2.0

//! Kernel objects as the tools print them, for comparisons.

use anyhow::Result;

use crate::rig::Host;

/// The outputs of `commands` on a node, without comments, packet counters and random order. `keep` chooses
/// lines, by command and line.
///
/// # Errors
/// If a command fails.
pub fn listing(
    node: &Host,
    commands: &[&str],
    keep: impl Fn(&str, &str) -> bool,
) -> Result<String> {
    let mut all = String::new();
    for command in commands {
        let words: Vec<_> = command.split(' ').collect();
        let text = node.exec(&words)?;
        // Comments with times belong to no object.
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let lines = lines.filter(|line| keep(command, line));
        let mut lines: Vec<_> = lines.map(without_counters).collect();
        if command.starts_with("ipvsadm") || command.starts_with("ipset") {
            // The kernel lists these in no fixed order.
            lines.sort_unstable();
        }
        all += &format!("# {command}\n{}\n", lines.join("\n"));
    }
    Ok(all)
}

/// Removes the packet and byte counters at the end of a chain's declaration.
fn without_counters(line: &str) -> &str {
    match line.starts_with(':') {
        true => line.split(" [").next().unwrap_or(line),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_declarations_of_chains_have_counters() {
        assert_eq!(without_counters(":INPUT ACCEPT [7:420]"), ":INPUT ACCEPT");
        let rule = "-A INPUT -m comment --comment \"a [b]\" -j ACCEPT";
        assert_eq!(without_counters(rule), rule);
    }
}
