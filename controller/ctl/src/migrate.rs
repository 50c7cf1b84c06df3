// SPDX-License-Identifier: Apache-2.0

//! `migrate kube-proxy`: values of the Helm chart from kube-proxy's configuration.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use portolan_kube_proxy_config::{Config, Converted, convert, parse, parse_flags, render};
use portolan_source::kubernetes;
use tokio::time::timeout;

use crate::args::ConnectArgs;

/// Exit code if something that is set has no counterpart.
const LOST: u8 = 3;

/// The ConfigMaps and keys of kube-proxy's configuration: kubeadm's and EKS's.
const PLACES: [(&str, &str); 3] = [
    ("kube-proxy", "config.conf"),
    ("kube-proxy", "config"),
    ("kube-proxy-config", "config"),
];
/// Key of the kubeconfig beside the configuration, in kubeadm's ConfigMap.
const KUBECONFIG: &str = "kubeconfig.conf";
const NAMESPACE: &str = "kube-system";

/// Predecessors.
#[derive(Debug, Subcommand)]
pub(crate) enum Predecessor {
    /// Print values of the Helm chart for the configuration of a kube-proxy: a file, a ConfigMap of the
    /// cluster, or flags. Settings without counterpart are listed on stderr. Exit codes: 0; 3 if a
    /// setting has no counterpart; 2 if the configuration cannot be used.
    KubeProxy(KubeProxyArgs),
}

/// Arguments of `migrate kube-proxy`.
#[derive(Debug, Args)]
pub(crate) struct KubeProxyArgs {
    /// The source.
    #[command(flatten)]
    source: SourceArgs,

    /// Report unknown fields instead of refusing them.
    #[arg(long)]
    lenient: bool,
}

/// Sources of kube-proxy's configuration; exactly one.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SourceArgs {
    /// File with a KubeProxyConfiguration, or with the ConfigMap that holds it.
    file: Option<PathBuf>,

    /// Read the ConfigMap kube-proxy or kube-proxy-config in kube-system, with the kubeconfig of
    /// --kubeconfig and --context.
    #[arg(long)]
    from_cluster: bool,

    /// Flags of a kube-proxy, in one argument.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    args: Option<String>,
}

/// The values, what to say about them, and the exit code.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) values: String,
    pub(crate) report: String,
    pub(crate) code: u8,
}

/// A configuration as it was found.
struct Found {
    text: String,
    /// Its name in messages.
    name: String,
    /// The kubeconfig that it names, if it was found too.
    kubeconfig: Option<String>,
}

pub(crate) async fn run(
    connect: &ConnectArgs,
    predecessor: &Predecessor,
) -> anyhow::Result<Migration> {
    let Predecessor::KubeProxy(args) = predecessor;
    let source = &args.source;
    if let Some(flags) = &source.args {
        let config = parse_flags(flags).context("--args")?;
        return migrate("--args", &config, None, String::new());
    }
    let found = match &source.file {
        Some(path) => of_file(path)?,
        None => of_cluster(connect).await?,
    };
    let mut report = String::new();
    if source.from_cluster {
        writeln!(report, "read {}", found.name)?;
    }
    let parsed = parse(&found.text, args.lenient);
    let (config, unknown) = parsed.with_context(|| found.name.clone())?;
    for problem in &unknown {
        writeln!(report, "{}: {problem}", found.name)?;
    }
    let mut migration = migrate(&found.name, &config, found.kubeconfig.as_deref(), report)?;
    if !unknown.is_empty() {
        migration.code = LOST;
    }
    Ok(migration)
}

fn migrate(
    name: &str,
    config: &Config,
    kubeconfig: Option<&str>,
    mut report: String,
) -> anyhow::Result<Migration> {
    let converted: Converted = match convert(config, kubeconfig) {
        Ok(converted) => converted,
        Err((path, reason)) => bail!("{name}: {path}: {reason}"),
    };
    for finding in &converted.findings {
        let kind = match finding.is_lost {
            true => "no counterpart: ",
            false => "note: ",
        };
        writeln!(report, "{kind}{}: {}", finding.path, finding.reason)?;
    }
    Ok(Migration {
        values: render(&converted.values),
        code: if converted.has_losses() { LOST } else { 0 },
        report,
    })
}

fn of_file(path: &Path) -> anyhow::Result<Found> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
    Ok(Found {
        text,
        name,
        kubeconfig: None,
    })
}

async fn of_cluster(connect: &ConnectArgs) -> anyhow::Result<Found> {
    let (kubeconfig, context) = (connect.kubeconfig.as_deref(), connect.context.as_deref());
    let client = kubernetes::client(kubeconfig, context).await?;
    let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
    for (name, key) in PLACES {
        let found = timeout(connect.timeout, api.get_opt(name)).await;
        let found = found.context("the API server does not answer in time")?;
        let found = found.with_context(|| format!("ConfigMap {NAMESPACE}/{name}"))?;
        let mut data = found.and_then(|found| found.data).unwrap_or_default();
        if let Some(text) = data.remove(key) {
            return Ok(Found {
                text,
                name: format!("ConfigMap {NAMESPACE}/{name}, key {key}"),
                kubeconfig: data.remove(KUBECONFIG),
            });
        }
    }
    bail!(
        "{NAMESPACE} has neither a ConfigMap kube-proxy with the key config.conf or config, nor \
         kube-proxy-config with config: give the configuration as a file or by --args"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    async fn migrate(args: &[&str]) -> anyhow::Result<Migration> {
        let cli = Cli::try_parse_from([&["portolanctl", "migrate", "kube-proxy"], args].concat())?;
        let Command::Migrate { predecessor } = &cli.command else {
            unreachable!("{args:?}")
        };
        run(&cli.connect, predecessor).await
    }

    #[tokio::test]
    async fn a_file_becomes_values_and_an_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.conf");
        let file = path.to_str().unwrap();
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        std::fs::write(
            &path,
            format!("{head}mode: ipvs\nclusterCIDR: 10.0.0.0/8\n"),
        )
        .unwrap();
        let done = migrate(&[file]).await.unwrap();
        assert_eq!((done.code, done.report.as_str()), (0, ""));
        assert!(
            done.values
                .contains("clusterCIDRs: [\"10.0.0.0/8\"]  # clusterCIDR\n")
        );

        std::fs::write(
            &path,
            format!("{head}mode: ipvs\nhostnameOverride: a\nnew: 1\n"),
        )
        .unwrap();
        let error = format!("{:#}", migrate(&[file]).await.unwrap_err());
        assert!(
            error.contains("config.conf: line 5: new: unknown field"),
            "{error}"
        );
        let done = migrate(&[file, "--lenient"]).await.unwrap();
        assert_eq!(done.code, LOST);
        for part in ["line 5: new: unknown", "no counterpart: hostnameOverride: "] {
            assert!(done.report.contains(part), "{}", done.report);
        }
    }

    #[tokio::test]
    async fn flags_become_values() {
        let done = migrate(&["--args", "--proxy-mode=ipvs --ipvs-scheduler=lc"]).await;
        let done = done.unwrap();
        assert!(
            done.values.contains("scheduler: \"lc\"  # ipvs.scheduler"),
            "{}",
            done.values
        );
        assert_eq!(done.code, 0);
        assert!(
            migrate(&["--args", "--proxy-mode=kernelspace"])
                .await
                .is_err()
        );
        assert!(migrate(&[]).await.is_err(), "a source is needed");
        assert!(
            migrate(&["f", "--from-cluster"]).await.is_err(),
            "one source"
        );
    }
}
