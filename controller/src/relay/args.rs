//! The flags of a relay: which controllers it takes its tables from, and as whom.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use portolan_subscription::{HoldConfig, Security, endpoint};
use portolan_tls::{ClientFiles, Rotating};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tonic::transport::Uri;

/// The controllers behind us.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UpstreamArgs {
    /// A controller to take the tables of all nodes from, as host:port, for `--source controller`;
    /// may be repeated, and a name stands for all its addresses.
    #[arg(
        long,
        env = "PORTOLAN_UPSTREAM",
        value_delimiter = ',',
        required_if_eq("source", "controller")
    )]
    upstream: Vec<String>,

    /// The relay's name, as in its certificate. Default: the host's name.
    #[arg(long, env = "PORTOLAN_RELAY_NAME")]
    relay_name: Option<String>,

    /// A directory with ca.crt, tls.crt and tls.key, to show to the controllers of --upstream.
    #[arg(long, env = "PORTOLAN_UPSTREAM_TLS_DIR")]
    upstream_tls_dir: Option<PathBuf>,

    /// The certificates of who signs those of --upstream, in PEM.
    #[arg(long, env = "PORTOLAN_UPSTREAM_TLS_CA")]
    upstream_tls_ca: Option<PathBuf>,

    /// The certificate to show to --upstream, in PEM; it must have the URI
    /// portolan://CLUSTER/relay/NAME.
    #[arg(
        long,
        env = "PORTOLAN_UPSTREAM_TLS_CERT",
        requires = "upstream_tls_key"
    )]
    upstream_tls_cert: Option<PathBuf>,

    /// The key of --upstream-tls-cert, in PEM.
    #[arg(
        long,
        env = "PORTOLAN_UPSTREAM_TLS_KEY",
        requires = "upstream_tls_cert"
    )]
    upstream_tls_key: Option<PathBuf>,

    /// The name that the certificates of --upstream must have. Default: the host of each address.
    #[arg(long, env = "PORTOLAN_UPSTREAM_TLS_SERVER_NAME")]
    upstream_tls_server_name: Option<String>,

    /// Speak to --upstream without TLS: anybody on the way can change the tables of all nodes.
    #[arg(long, env = "PORTOLAN_UPSTREAM_PLAINTEXT")]
    upstream_plaintext: bool,

    /// A relay holds tables back that come first from a controller and would delete more than so
    /// many percent of the records, and those are more than 100; 100 holds none.
    #[arg(long, env = "PORTOLAN_HOLD_DELETIONS_ABOVE", default_value = "50",
        value_parser = clap::value_parser!(u8).range(0..=100))]
    hold_deletions_above: u8,

    /// After so many seconds tables that are held back count as confirmed, if the controller still
    /// stands by them. 0: only an operator confirms them (`portolanctl confirm relay/NAME` there).
    #[arg(long, env = "PORTOLAN_HOLD_SECONDS", default_value = "30",
        value_parser = clap::value_parser!(u64).range(0..=31_536_000))]
    hold_seconds: u64,
}

impl UpstreamArgs {
    /// Checks what needs no file.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        self.upstreams()?;
        self.server_name()?;
        ensure!(!self.name().is_empty(), "--relay-name: empty");
        let (ca, pair) = (self.ca(), self.pair());
        match (self.upstream_plaintext, ca.is_some() || pair.is_some()) {
            (true, false) => Ok(()),
            (true, true) => {
                bail!("--upstream-plaintext and --upstream-tls-...: only one of them can be")
            }
            (false, _) => {
                ensure!(
                    ca.is_some() && pair.is_some(),
                    "--upstream needs --upstream-tls-dir, or --upstream-tls-ca with \
                     --upstream-tls-cert and --upstream-tls-key; on a network that you trust, \
                     --upstream-plaintext"
                );
                Ok(())
            }
        }
    }

    /// Whom to dial.
    pub(crate) fn upstreams(&self) -> anyhow::Result<Vec<Uri>> {
        let upstreams = self.upstream.iter().map(|address| endpoint(address));
        let upstreams: Result<_, _> = upstreams.collect();
        upstreams.context("--upstream")
    }

    /// As whom.
    pub(crate) fn name(&self) -> String {
        let host = || {
            let name = rustix::system::uname();
            name.nodename().to_string_lossy().to_lowercase()
        };
        self.relay_name.clone().unwrap_or_else(host)
    }

    /// Which tables are held back.
    pub(crate) fn hold(&self) -> HoldConfig {
        let after = Duration::from_secs(self.hold_seconds);
        HoldConfig {
            above_percent: self.hold_deletions_above,
            confirmed_after: (self.hold_seconds > 0).then_some(after),
        }
    }

    /// Reads the files. Blocks.
    pub(crate) fn open(&self) -> anyhow::Result<(Security, Option<Rotating<ClientConfig>>)> {
        self.validate()?;
        let Some(ca) = self.ca() else {
            return Ok((Security::Plaintext, None));
        };
        let identity = self.pair();
        let files = ClientFiles { ca, identity };
        let (security, files) = Security::open(files, "upstream_tls", self.server_name()?, None)?;
        Ok((security, Some(files)))
    }

    fn in_dir(&self, file: &str) -> Option<PathBuf> {
        self.upstream_tls_dir.as_deref().map(|dir| dir.join(file))
    }

    fn ca(&self) -> Option<PathBuf> {
        let own = self.upstream_tls_ca.clone();
        own.or_else(|| self.in_dir("ca.crt"))
    }

    fn pair(&self) -> Option<(PathBuf, PathBuf)> {
        let own = self.upstream_tls_cert.clone();
        let own = own.zip(self.upstream_tls_key.clone());
        own.or_else(|| self.in_dir("tls.crt").zip(self.in_dir("tls.key")))
    }

    fn server_name(&self) -> anyhow::Result<Option<ServerName<'static>>> {
        let name = self.upstream_tls_server_name.clone();
        let name = name.map(ServerName::try_from).transpose();
        name.context("--upstream-tls-server-name")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[arg(long, default_value = "controller")]
        source: String,
        #[command(flatten)]
        upstream: UpstreamArgs,
    }

    fn valid(args: &[&str]) -> anyhow::Result<()> {
        let all = [&["x", "--source=controller"], args].concat();
        Cli::try_parse_from(all)?.upstream.validate()
    }

    #[test]
    fn it_must_be_clear_whom_to_ask_and_who_asks() {
        assert!(valid(&[]).is_err());
        assert!(valid(&["--upstream=a:1", "--upstream-plaintext"]).is_ok());
        assert!(valid(&["--upstream=a:1", "--upstream-tls-dir=/d"]).is_ok());
        let own = ["--upstream-tls-cert=c", "--upstream-tls-key=k"];
        let with = |more: &str| valid(&[&["--upstream=a:1"], &own[..], &[more]].concat());
        assert!(with("--upstream-tls-ca=a").is_ok());
        for bad in ["--upstream-plaintext", "--upstream-tls-server-name=a b"] {
            assert!(with(bad).is_err(), "{bad}");
        }
        for (args, named) in [
            (&["--upstream=a:1"][..], "--upstream-plaintext"),
            (
                &["--upstream=a", "--upstream-plaintext"],
                "--upstream: \"a\"",
            ),
            (
                &["--upstream=a:1", "--upstream-tls-ca=a"],
                "--upstream-tls-cert",
            ),
        ] {
            let error = format!("{:#}", valid(args).unwrap_err());
            assert!(error.contains(named), "{args:?}: {error}");
        }
    }

    #[test]
    fn no_time_confirms_if_it_is_0() {
        let parse = |args: &[&str]| Cli::try_parse_from(args).unwrap().upstream.hold();
        let args = ["x", "--upstream=a:1", "--hold-seconds=0"];
        assert_eq!(parse(&args).confirmed_after, None);
        assert_eq!(parse(&args[..2]), HoldConfig::default());
    }
}
