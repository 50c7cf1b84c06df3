// SPDX-License-Identifier: Apache-2.0

//! Shell completions and manual pages, made from the command line's definition.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

/// Commands that document a program.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum DocsCommand {
    /// Write completions for a shell to standard output.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a manual page of the program and of each command into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        directory: PathBuf,
    },
}

impl DocsCommand {
    /// Writes them for a program.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn run(&self, program: Command) -> io::Result<()> {
        match self {
            Self::Completions { shell } => io::stdout().write_all(&completions(program, *shell)),
            Self::Man { directory } => man_pages(program, directory),
        }
    }
}

fn completions(mut program: Command, shell: Shell) -> Vec<u8> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, name, &mut script);
    script
}

/// Hidden commands and flags have no page.
fn man_pages(program: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(program, directory)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", directory.display())))
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn program() -> Command {
        let nodes = Command::new("nodes").about("Lists nodes.");
        let hidden = Command::new("secret").hide(true);
        let program = Command::new("portolan-x").about("Does things.");
        let flag = Arg::new("level").long("level").help("How much.");
        program.arg(flag).subcommand(nodes).subcommand(hidden)
    }

    #[test]
    fn completions_offer_flags_and_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(completions(program(), shell)).unwrap();
            assert!(
                script.contains("level") && script.contains("nodes"),
                "{shell}"
            );
        }
    }

    #[test]
    fn each_command_that_is_shown_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        man_pages(program(), directory.path()).unwrap();
        let entries = fs::read_dir(directory.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["portolan-x-nodes.1", "portolan-x.1"]);
        let page = fs::read_to_string(directory.path().join("portolan-x.1")).unwrap();
        assert!(
            page.contains("Does things.") && page.contains("level"),
            "{page}"
        );
    }
}
