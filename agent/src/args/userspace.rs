// SPDX-License-Identifier: Apache-2.0

//! Flags of the userspace dataplane, and of `run`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use portolan_dns::ZoneConfig;

use super::{DataplaneKind, RunArgs};

/// Flags of the userspace dataplane.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Userspace dataplane")]
pub struct UserspaceArgs {
    /// Where clients find Services, with --dataplane userspace and without a command: each Service at an address
    /// 127.x.y.z of its own, or one proxy for SOCKS5 and HTTP CONNECT.
    #[arg(
        long,
        env = "PORTOLAN_USERSPACE_LISTEN",
        default_value = "loopback",
        value_name = "WHERE"
    )]
    pub userspace_listen: UserspaceListen,

    /// Address of the port for SOCKS5 and HTTP CONNECT, with --userspace-listen socks. It asks nobody who he is:
    /// keep it on the loopback device.
    #[arg(
        long,
        env = "PORTOLAN_USERSPACE_SOCKS",
        default_value = "127.0.0.1:1080",
        value_name = "ADDRESS"
    )]
    pub userspace_socks: SocketAddr,

    /// Zone of Services' names with --dataplane userspace.
    #[arg(
        long,
        env = "PORTOLAN_USERSPACE_ZONE",
        default_value = "cluster.local",
        value_name = "ZONE"
    )]
    pub userspace_zone: String,

    /// Namespace whose Services are found by their bare names with --dataplane userspace.
    #[arg(
        long,
        env = "PORTOLAN_USERSPACE_NAMESPACE",
        default_value = "default",
        value_name = "NAMESPACE"
    )]
    pub userspace_namespace: String,
}

/// Where clients find Services.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UserspaceListen {
    /// On the loopback device: 127.x.y.z by the hash of a Service's name, with the Service's own ports, or ports
    /// greater by 10,000 where those need a right. IPv6: a port of ::1 for each.
    Loopback,
    /// At one port for SOCKS5 and HTTP CONNECT, by name or virtual address.
    Socks,
}

/// Flags of `run`: those of a run, with defaults for one program or one developer instead of a node.
#[derive(Debug)]
pub struct RunCommandArgs {
    /// The flags.
    pub run: RunArgs,
    /// The command and its arguments; empty without one.
    pub command: Vec<OsString>,
}

/// The flags as they are parsed.
#[derive(Debug, Args)]
struct Parsed {
    #[command(flatten)]
    run: RunArgs,

    /// Command that reaches the Services, and its arguments. It has user, network and mount namespaces of its own:
    /// the Services' addresses and names are there, and no other network. Its exit code is that of `run`.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The default of `--state-dir` for `run`: none that outlives it.
const OWN_DIRECTORY: &str = "a directory of its own, deleted at the end";

/// Defaults that differ from those of a node's agent.
const DEFAULTS: [(&str, &str); 6] = [
    ("source", "file"),
    ("dataplane", "userspace"),
    ("state_dir", OWN_DIRECTORY),
    ("admin_listen", "127.0.0.1:0"),
    ("healthz_listen", ""),
    ("debug_listen", ""),
];

impl Args for RunCommandArgs {
    fn augment_args(command: Command) -> Command {
        let parsed = Parsed::augment_args(command);
        DEFAULTS.into_iter().fold(parsed, |parsed, (name, value)| {
            parsed.mut_arg(name, |arg| arg.default_value(value))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunCommandArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let Parsed { run, command } = Parsed::from_arg_matches(matches)?;
        Ok(Self { run, command })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl RunCommandArgs {
    /// Returns `true` if the state is in a directory that is deleted at the end.
    #[must_use]
    pub fn has_own_directory(&self) -> bool {
        self.run.state_dir.as_os_str() == OWN_DIRECTORY
    }

    /// Checks the flags that only concern `run`, without a look at files.
    ///
    /// # Errors
    /// If another dataplane is asked for, or there can be no names in the zone.
    pub fn validate_flags(&self) -> anyhow::Result<()> {
        ensure!(
            self.run.kernel.dataplane == DataplaneKind::Userspace,
            "run needs --dataplane userspace"
        );
        let zone = ZoneConfig::new(&self.run.userspace.userspace_zone);
        zone.map(drop).context("--userspace-zone")
    }

    /// Checks what only concerns `run`.
    ///
    /// # Errors
    /// If another dataplane is asked for, or a file is missing: a command would wait for it.
    pub fn validate(&self) -> anyhow::Result<()> {
        self.validate_flags()?;
        let missing: Option<&PathBuf> = self.run.file.iter().find(|path| !path.exists());
        match missing {
            Some(path) => anyhow::bail!("--file {}: no such file", path.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Source};

    fn parse(args: &[&str]) -> RunCommandArgs {
        let cli = Cli::try_parse_from([&["portolan-agent"], args].concat()).unwrap();
        match cli.command {
            Some(crate::args::Command::Run(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn run_has_defaults_of_its_own_and_takes_a_command() {
        let args = parse(&["run", "--file=/dev/null", "--", "curl", "--fail", "web"]);
        assert!(args.has_own_directory());
        assert_eq!(args.command, ["curl", "--fail", "web"]);
        assert_eq!(args.run.source, Source::File);
        assert_eq!(args.run.kernel.dataplane, DataplaneKind::Userspace);
        assert_eq!(args.run.healthz_listen().unwrap(), None);
        assert_eq!(args.run.admin_listen().unwrap().to_string(), "127.0.0.1:0");
        args.validate().unwrap();
        // A node's agent keeps its own.
        let cli = Cli::try_parse_from(["portolan-agent"]).unwrap();
        assert_eq!(cli.run.kernel.dataplane, DataplaneKind::Ipvs);
    }

    #[test]
    fn a_missing_file_and_another_dataplane_are_errors_that_name_the_flag() {
        let error = |args: &[&str]| parse(args).validate().unwrap_err().to_string();
        let found = error(&["run", "--file=/nowhere/at/all", "--", "true"]);
        assert_eq!(found, "--file /nowhere/at/all: no such file");
        let found = error(&["run", "--dataplane=ipvs", "--", "true"]);
        assert_eq!(found, "run needs --dataplane userspace");
    }

    #[test]
    fn the_zone_must_be_a_name_with_and_without_a_command() {
        let commands: [&[&str]; 2] = [&[], &["--", "true"]];
        for command in commands {
            let validate = |zone: &str| {
                let zone = format!("--userspace-zone={zone}");
                let mut args = vec!["run", "--file=/dev/null", zone.as_str()];
                args.extend(command);
                parse(&args).validate()
            };
            for zone in ["cluster.local", "Cluster.Local", "cluster.local."] {
                validate(zone).unwrap();
            }
            let error = validate(".").unwrap_err();
            assert_eq!(error.to_string(), "--userspace-zone");
        }
    }
}
