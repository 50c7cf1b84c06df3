// SPDX-License-Identifier: Apache-2.0

//! `--watch`: repeats a command, and shows its result whenever it changes.

use std::io::{IsTerminal as _, Write as _, stdout};
use std::time::Duration;

use anyhow::bail;

use crate::args::Cli;
use crate::commands;
use crate::reply::Output;

/// Moves to the first line of a terminal and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Separates YAML documents.
const DOCUMENT: &str = "---\n";

/// Repeats the command until its output cannot be written.
///
/// # Errors
/// If the command cannot be repeated, or if it fails the first time. Later failures are shown.
pub(crate) async fn run(cli: &Cli, interval: Duration) -> anyhow::Result<u8> {
    if !cli.command.can_be_watched() {
        bail!("--watch: this command cannot be repeated");
    }
    let mut ticks = tokio::time::interval(interval);
    let mut last = None;
    loop {
        ticks.tick().await;
        let (text, reply) = match commands::run(cli).await {
            Ok(reply) => (reply.format(cli.output)?, reply),
            Err(error) if last.is_none() => return Err(error),
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "portolanctl: {error:#}");
                continue;
            }
        };
        if last
            .as_ref()
            .is_none_or(|(shown, notes)| *shown != text || *notes != reply.notes)
        {
            let shown = separated(&text, cli.output, last.is_none(), stdout().is_terminal());
            stdout().write_all(shown.as_bytes())?;
            stdout().flush()?;
            reply.write_notes();
            last = Some((text, reply.notes));
        }
    }
}

fn separated(text: &str, output: Output, is_first: bool, is_terminal: bool) -> String {
    match output {
        Output::Table | Output::Wide if is_terminal => format!("{CLEAR}{text}"),
        Output::Table | Output::Wide if !is_first => format!("\n{text}"),
        Output::Yaml if !is_first => format!("{DOCUMENT}{text}"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_separated() {
        assert_eq!(separated("a\n", Output::Table, true, false), "a\n");
        assert_eq!(separated("a\n", Output::Wide, false, false), "\na\n");
        assert!(separated("a\n", Output::Table, true, true).starts_with(CLEAR));
        assert_eq!(
            separated("a: 1\n", Output::Yaml, false, true),
            "---\na: 1\n"
        );
        assert_eq!(separated("{}\n", Output::Json, false, true), "{}\n");
    }
}
