// SPDX-License-Identifier: Apache-2.0

//! Completions and manual pages: those of the program, and portolan.yaml(5).

use std::fs;
use std::io;

use clap::CommandFactory as _;
use portolan_runtime::DocsCommand;

use crate::args::Cli;

/// The manual page of the files.
const FILE_PAGE: &str = "portolan.yaml.5";

/// Writes what the command asks for.
///
/// # Errors
/// If it cannot be written.
pub fn run(command: &DocsCommand) -> io::Result<()> {
    command.run(Cli::command())?;
    if let DocsCommand::Man { directory } = command {
        fs::write(directory.join(FILE_PAGE), portolan_director::manual())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_those_of_the_commands_and_of_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let command = DocsCommand::Man {
            directory: directory.path().join("man"),
        };
        run(&command).unwrap();
        let man = directory.path().join("man");
        for page in ["portolan-agent.1", "portolan-agent-reload.1", FILE_PAGE] {
            let text = fs::read_to_string(man.join(page)).unwrap();
            assert!(text.contains(".TH"), "{page}");
        }
    }
}
