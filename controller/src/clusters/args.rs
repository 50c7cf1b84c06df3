// SPDX-License-Identifier: Apache-2.0

//! Flags of the source `clusters`.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use portolan_policy::Access;
use portolan_source::kubernetes::MemberConfig;

use super::policy::PolicyFiles;
use super::supervisor::token_problems;
use crate::args::{Args, Source};
use crate::mcs::LeaderArgs;

/// Flags of several clusters.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Several clusters")]
pub(crate) struct ClustersArgs {
    /// A file or directory of policy objects (YAML or JSON): a Cluster for each cluster that is served, for
    /// `--source clusters`; may be repeated.
    #[arg(
        long,
        env = "PORTOLAN_POLICY_FILE",
        value_name = "PATH",
        value_delimiter = ','
    )]
    pub(crate) policy_file: Vec<PathBuf>,

    /// Take policy objects from the API server of the pod's ServiceAccount, else of --kubeconfig, too, for
    /// `--source clusters`, and write the status of its Clusters. Its resources are those of `portolan-controller
    /// crds`.
    #[arg(long, env = "PORTOLAN_POLICY_KUBERNETES")]
    pub(crate) policy_kubernetes: bool,

    /// A directory for what must outlive a restart. For `--source clusters`: virtual addresses of imports, states
    /// of clusters, and drains. Without it they are kept in memory, and the same objects give imports the same
    /// addresses again as long as none has come or gone. With --federation-upstream: plans of imports. Without it a
    /// controller that starts while the centre is away serves no imports before it is back.
    #[arg(long, env = "PORTOLAN_STATE_DIR", value_name = "DIRECTORY")]
    pub(crate) state_dir: Option<PathBuf>,

    /// The election of the replica that writes into clusters.
    #[command(flatten)]
    pub(crate) leader: LeaderArgs,
}

impl ClustersArgs {
    /// Checks that clap cannot make.
    ///
    /// # Errors
    /// If a flag of a single cluster is set too.
    pub(crate) fn validate(args: &Args) -> anyhow::Result<()> {
        if args.source != Source::Clusters {
            let is_set = args.clusters.state_dir.is_some() && !args.edge.is_on();
            ensure!(
                !is_set,
                "--state-dir is for --source clusters and --federation-upstream"
            );
            let is_set = args.clusters.leader.mcs_lease.is_some();
            ensure!(!is_set, "--mcs-lease is for --source clusters");
            let is_set = args.clusters.policy_kubernetes;
            ensure!(!is_set, "--policy-kubernetes is for --source clusters");
            return Ok(());
        }
        ensure!(
            !args.clusters.policy_file.is_empty() || args.clusters.policy_kubernetes,
            "--source clusters needs --policy-file or --policy-kubernetes"
        );
        for (flag, is_set) in [
            ("--cluster", !args.cluster.is_empty()),
            ("--cluster-id", args.cluster_id.is_some()),
            ("--dns-zone", args.dns.is_on()),
            ("--service-proxy-name", args.service_proxy_name.is_some()),
        ] {
            ensure!(
                !is_set,
                "{flag} is for a single cluster, and cannot be used with --source clusters"
            );
        }
        Ok(())
    }

    /// All that is wrong with the policy's files. Blocks.
    pub(crate) fn check_files(&self) -> Vec<String> {
        let mut files = PolicyFiles::new(self.policy_file.clone());
        files.refresh();
        let mut problems = files.problems().to_vec();
        problems.extend(token_problems(files.objects()));
        let clusters = files.objects().clusters.values();
        problems.extend(clusters.filter_map(|cluster| {
            let Access::KubeconfigFile(path) = &cluster.access else {
                return None;
            };
            let error = MemberConfig::read(Path::new(path)).err()?;
            let name = &cluster.meta.name;
            Some(format!(
                "Cluster {name}: spec.access.kubeconfigFile: {error}"
            ))
        }));
        problems
    }
}
