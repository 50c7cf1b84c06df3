// SPDX-License-Identifier: Apache-2.0

//! Flags of the store, the same for the controller and for `portolanctl`.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::access::Access;
use crate::key::Prefix;

/// The etcd with the objects of a fleet.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "etcd")]
pub struct EtcdArgs {
    /// An etcd endpoint with the objects of the fleet, as http://HOST:PORT or https://HOST:PORT; may be
    /// repeated for the members of one cluster.
    #[arg(
        long,
        env = "PORTOLAN_ETCD_ENDPOINT",
        value_delimiter = ',',
        value_name = "URL"
    )]
    etcd_endpoint: Vec<String>,

    /// The beginning of all keys.
    #[arg(long, env = "PORTOLAN_ETCD_PREFIX", default_value = "/portolan")]
    etcd_prefix: String,

    /// CA certificates that verify etcd's certificate, in PEM. Reloaded when the file changes.
    #[arg(long, env = "PORTOLAN_ETCD_CA", value_name = "FILE")]
    etcd_ca: Option<PathBuf>,

    /// The client certificate for etcd, in PEM. Reloaded when the file changes.
    #[arg(
        long,
        env = "PORTOLAN_ETCD_CERT",
        value_name = "FILE",
        requires = "etcd_key"
    )]
    etcd_cert: Option<PathBuf>,

    /// The private key of --etcd-cert, in PEM. Reloaded when the file changes.
    #[arg(
        long,
        env = "PORTOLAN_ETCD_KEY",
        value_name = "FILE",
        requires = "etcd_cert"
    )]
    etcd_key: Option<PathBuf>,

    /// The etcd user, if etcd's authentication is enabled.
    #[arg(
        long,
        env = "PORTOLAN_ETCD_USER",
        value_name = "NAME",
        requires = "etcd_password_file"
    )]
    etcd_user: Option<String>,

    /// A file with the password of --etcd-user.
    #[arg(
        long,
        env = "PORTOLAN_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        requires = "etcd_user"
    )]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// Checks the flags, without reading files.
    ///
    /// # Errors
    /// A flag is missing or cannot be used.
    pub fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            !self.etcd_endpoint.is_empty(),
            "--etcd-endpoint: missing: expected http://HOST:PORT or https://HOST:PORT"
        );
        self.prefix()?;
        self.access().validate()
    }

    /// The beginning of all keys.
    ///
    /// # Errors
    /// It cannot be one.
    pub fn prefix(&self) -> anyhow::Result<Prefix> {
        let prefix = self.etcd_prefix.parse();
        prefix.with_context(|| format!("--etcd-prefix {:?}", self.etcd_prefix))
    }

    /// The way to etcd.
    #[must_use]
    pub fn access(&self) -> Access {
        Access {
            flags: "--etcd",
            endpoints: self.etcd_endpoint.clone(),
            ca: self.etcd_ca.clone(),
            identity: self.etcd_cert.clone().zip(self.etcd_key.clone()),
            user: self.etcd_user.clone().zip(self.etcd_password_file.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        etcd: EtcdArgs,
    }

    fn problem(args: &str) -> Option<String> {
        let words = ["test"].into_iter().chain(args.split_whitespace());
        match Cli::try_parse_from(words) {
            Ok(cli) => cli.etcd.validate().err().map(|error| format!("{error:#}")),
            Err(error) => Some(error.to_string()),
        }
    }

    #[test]
    fn flags_that_do_not_fit_are_named() {
        for (args, named) in [
            ("", "--etcd-endpoint"),
            ("--etcd-endpoint a:1", "--etcd-endpoint"),
            ("--etcd-endpoint http://a", "--etcd-endpoint"),
            ("--etcd-endpoint https://a:1", "--etcd-ca"),
            ("--etcd-endpoint http://a:1 --etcd-ca x", "--etcd-ca"),
            (
                "--etcd-endpoint http://a:1 --etcd-prefix a",
                "--etcd-prefix",
            ),
            (
                "--etcd-endpoint https://a:1 --etcd-ca x --etcd-cert y",
                "--etcd-key",
            ),
            (
                "--etcd-endpoint https://a:1 --etcd-ca x --etcd-key y",
                "--etcd-cert",
            ),
            (
                "--etcd-endpoint http://a:1 --etcd-user u",
                "--etcd-password-file",
            ),
        ] {
            let problem = problem(args).unwrap_or_default();
            assert!(problem.contains(named), "{args}: {problem}");
        }
        for good in [
            "--etcd-endpoint http://a:1,http://[::1]:2",
            "--etcd-endpoint https://a:1 --etcd-ca x --etcd-cert y --etcd-key z",
            "--etcd-endpoint http://a:1 --etcd-user u --etcd-password-file f",
        ] {
            assert_eq!(problem(good), None, "{good}");
        }
    }
}
