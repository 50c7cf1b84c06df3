// SPDX-License-Identifier: Apache-2.0

//! The flags of a relay: its controllers, and its identity.

use anyhow::{Context as _, ensure};
use portolan_subscription::{Identity, endpoint, identity_args};
use tonic::transport::Uri;

use crate::process_name::host_name;

identity_args! {
    /// TLS files.
    struct TlsArgs {
        prefix: "upstream-",
        env: "PORTOLAN_UPSTREAM_",
        peer: "--upstream",
        uri: "portolan://CLUSTER/relay/NAME",
        plaintext: "Connect to --upstream without TLS: everyone on the network path can change the \
                    tables of all nodes",
    }
}

/// The upstream controllers.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Relay")]
pub(crate) struct UpstreamArgs {
    /// Address of a controller to take the tables of all nodes from, as host:port, for `--source
    /// controller`; may be repeated. A name stands for all addresses that it resolves to.
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

    #[command(flatten)]
    tls: TlsArgs,
}

impl UpstreamArgs {
    /// Checks the flags, without reading files.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        self.upstreams()?;
        ensure!(!self.name().is_empty(), "--relay-name: empty");
        self.identity().validate()?;
        Ok(())
    }

    /// The identity of both sides.
    pub(crate) fn identity(&self) -> Identity {
        self.tls.identity()
    }

    /// The controllers' addresses.
    pub(crate) fn upstreams(&self) -> anyhow::Result<Vec<Uri>> {
        let upstreams = self.upstream.iter().map(|address| endpoint(address));
        let upstreams: Result<_, _> = upstreams.collect();
        upstreams.context("--upstream")
    }

    /// The relay's name.
    pub(crate) fn name(&self) -> String {
        self.relay_name.clone().unwrap_or_else(host_name)
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
    fn both_sides_must_be_identified() {
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
}
