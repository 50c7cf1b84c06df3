// SPDX-License-Identifier: Apache-2.0

//! The flags of an edge controller: the centre, and the identity of both sides.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use ipnet::IpNet;
use portolan_subscription::{Identity, Token, endpoint, identity_args};
use portolan_tls::EdgeName;
use tonic::transport::Uri;

use crate::args::{Args, Source};
use crate::process_name::host_name;

identity_args! {
    /// TLS files.
    struct CentreTlsArgs {
        prefix: "federation-",
        env: "PORTOLAN_FEDERATION_",
        peer: "--federation-upstream",
        uri: "portolan://CLUSTER/edge/NAME",
        plaintext: "Connect to --federation-upstream without TLS: everyone on the network path can change what \
                    other clusters know of this one",
    }
}

/// The centre of several clusters.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EdgeArgs {
    /// Address of a controller with `--source clusters` that this one sends the objects of its cluster to, as
    /// host:port, with `--source kubernetes` or `--source file`; may be repeated. A name stands for all addresses
    /// that it resolves to. Each replica of the centre needs the objects, so the addresses must lead to all of them.
    #[arg(
        long,
        env = "PORTOLAN_FEDERATION_UPSTREAM",
        value_name = "ADDRESS",
        value_delimiter = ','
    )]
    federation_upstream: Vec<String>,

    /// Name of this edge controller, as in its certificate; with a token, the name of its pod. Replicas may have the
    /// same one. One of a cluster at a time sends objects; another one takes its place when it is silent. Default: the
    /// host's name.
    #[arg(long, env = "PORTOLAN_EDGE_NAME", value_name = "NAME")]
    edge_name: Option<String>,

    /// Write no ServiceImports, EndpointSlices and conditions of ServiceExports into the cluster for
    /// --federation-upstream. With `--source file` nothing is written in any case.
    #[arg(long, env = "PORTOLAN_FEDERATION_READ_ONLY")]
    federation_read_only: bool,

    /// Networks that the virtual addresses of imports must lie in, as `spec.network.clusterSetIPs` of the Cluster object;
    /// may be repeated. Imports with others, which a captured centre may send, are not served. Without it they may have
    /// any address that no Service and no Node of the cluster has.
    #[arg(
        long,
        env = "PORTOLAN_FEDERATION_ADDRESS_RANGE",
        value_name = "CIDR",
        value_delimiter = ',',
        requires = "federation_upstream"
    )]
    federation_address_range: Vec<IpNet>,

    /// File with a ServiceAccount token to show to --federation-upstream in place of a certificate, bound to the pod of
    /// this controller: read for each connection, and never sent without TLS. The Cluster object at the centre has its
    /// issuer in spec.access.edge.tokens.
    #[arg(
        long,
        env = "PORTOLAN_FEDERATION_TOKEN_FILE",
        value_name = "FILE",
        requires = "federation_upstream"
    )]
    federation_token_file: Option<PathBuf>,

    #[command(flatten)]
    tls: CentreTlsArgs,
}

impl EdgeArgs {
    /// Returns `true` if this controller is an edge.
    pub(crate) fn is_on(&self) -> bool {
        !self.federation_upstream.is_empty()
    }

    /// Returns `true` if this controller writes what the centre asks for into its cluster.
    pub(crate) fn writes(&self) -> bool {
        self.is_on() && !self.federation_read_only
    }

    /// Checks the flags, without reading files.
    ///
    /// # Errors
    /// If flags are missing or exclude each other.
    pub(crate) fn validate(args: &Args) -> anyhow::Result<()> {
        let edge = &args.edge;
        if !edge.is_on() {
            return Ok(());
        }
        ensure!(
            matches!(args.source, Source::Kubernetes | Source::File),
            "--federation-upstream needs --source kubernetes or --source file"
        );
        ensure!(
            !args.cluster.is_empty(),
            "--federation-upstream needs --cluster, the name of the Cluster object at the centre"
        );
        edge.upstreams()?;
        EdgeName::new(&args.cluster, &edge.name()).context("--edge-name")?;
        edge.identity().validate()?;
        Ok(())
    }

    /// Opens the files of the identity.
    ///
    /// # Errors
    /// If one cannot be read or does not fit.
    pub(crate) fn check_files(&self) -> anyhow::Result<()> {
        if self.is_on() {
            self.identity().open("federation_tls").map(drop)?;
        }
        Ok(())
    }

    /// Where virtual addresses of imports may be; anywhere if empty.
    pub(crate) fn ranges(&self) -> Vec<IpNet> {
        self.federation_address_range.clone()
    }

    /// The identity of both sides.
    pub(super) fn identity(&self) -> Identity {
        let file = self.federation_token_file.clone();
        Identity {
            token: file.map_or(Token::Absent, Token::File),
            ..self.tls.identity()
        }
    }

    /// The addresses of the centre.
    pub(super) fn upstreams(&self) -> anyhow::Result<Vec<Uri>> {
        let upstreams = self.federation_upstream.iter();
        let upstreams: Result<_, _> = upstreams.map(|address| endpoint(address)).collect();
        upstreams.context("--federation-upstream")
    }

    /// The edge's name.
    pub(super) fn name(&self) -> String {
        self.edge_name.clone().unwrap_or_else(host_name)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    fn valid(args: &[&str]) -> anyhow::Result<()> {
        let all = [&["x", "--source=file", "--file=/f", "--plaintext"], args].concat();
        EdgeArgs::validate(&Cli::try_parse_from(all)?.run)
    }

    #[test]
    fn an_edge_has_a_cluster_a_name_and_an_identity() {
        assert!(valid(&[]).is_ok(), "no edge");
        let good = [
            "--federation-upstream=a:1",
            "--cluster=eu-1",
            "--federation-plaintext",
        ];
        valid(&good).unwrap();
        for (args, named) in [
            (&good[..2], "--federation-plaintext"),
            (&[good[0], good[2]][..], "--cluster"),
            (
                &[good[0], good[1], good[2], "--edge-name=a/b"][..],
                "--edge-name",
            ),
            (
                &["--federation-upstream=a", good[1], good[2]][..],
                "--federation-upstream: \"a\"",
            ),
            (
                &[good[0], good[1], "--federation-tls-ca=a"][..],
                "--federation-tls-cert and --federation-tls-key, or --federation-token-file",
            ),
            (
                &[good[0], good[1], good[2], "--federation-token-file=t"][..],
                "--federation-token-file: tokens are not sent in plaintext",
            ),
            (
                &[good[0], good[1], "--federation-token-file=t"][..],
                "set --federation-tls-dir",
            ),
        ] {
            let error = format!("{:#}", valid(args).unwrap_err());
            assert!(error.contains(named), "{args:?}: {error}");
        }
        // The centre's authority and a token suffice.
        let token = ["--federation-tls-ca=a", "--federation-token-file=t"];
        valid(&[good[0], good[1], token[0], token[1]]).unwrap();
        assert!(
            valid(&[token[1]]).is_err(),
            "no edge has a token for the centre"
        );
        let relay = ["x", "--source=controller", "--upstream=b:1", "--plaintext"];
        let relay = Cli::try_parse_from([&relay[..], &good].concat()).unwrap();
        let error = EdgeArgs::validate(&relay.run).unwrap_err().to_string();
        assert!(error.contains("--source"), "{error}");
    }
}
