// SPDX-License-Identifier: Apache-2.0

//! Flags of kube-proxy that the agent accepts, so that its manifests can be reused.
//!
//! Flags with a counterpart act. All others have no effect, and the agent logs why.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

/// The verbosity from which kube-proxy logs details of each sync.
const DEBUG_VERBOSITY: u8 = 4;

/// The score that the kernel adds to a process's own when it looks for memory.
const OOM_SCORE_FILE: &str = "/proc/self/oom_score_adj";

/// Flags of kube-proxy. Values of flags without effect are not checked.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "kube-proxy compatibility")]
pub struct KubeProxyArgs {
    /// File with a KubeProxyConfiguration, whose fields take the place of flags that are neither on the
    /// command line nor in the environment. Fields without effect are logged with the reason. The file is
    /// read at the start.
    #[arg(long, env = "PORTOLAN_CONFIG", value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Log verbosity: debug from 4 on, unless --log-level or RUST_LOG is set.
    #[arg(short, long = "v", value_name = "NUMBER")]
    verbosity: Option<u8>,

    /// A specific address is the node's own address of its family, as --node-ip.
    #[arg(long, value_name = "ADDRESS")]
    bind_address: Option<IpAddr>,

    /// The score adjustment of the process when the node runs out of memory.
    #[arg(long, value_name = "SCORE", allow_hyphen_values = true,
        value_parser = clap::value_parser!(i16).range(-1000..=1000))]
    oom_score_adj: Option<i16>,

    /// No effect: the agent ends whenever one of its ports cannot be bound.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    bind_address_hard_fail: Option<String>,

    /// No effect: the agent has no API client; tables arrive by a stream.
    #[arg(long, value_name = "DURATION")]
    config_sync_period: Option<String>,

    /// No effect: these gates are features of kube-proxy.
    #[arg(long, value_name = "GATES")]
    feature_gates: Option<String>,

    /// No effect: node ports on 127.0.0.1 exist in kube-proxy's iptables mode only.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    iptables_localhost_nodeports: Option<String>,

    /// No effect: changes are programmed as they arrive.
    #[arg(long, value_name = "DURATION")]
    iptables_min_sync_period: Option<String>,

    /// No effect: --sync-period applies to IPVS and to iptables alike.
    #[arg(long, value_name = "DURATION")]
    iptables_sync_period: Option<String>,

    /// No effect: changes are programmed as they arrive.
    #[arg(long, value_name = "DURATION")]
    ipvs_min_sync_period: Option<String>,

    /// No effect: the agent has no API client.
    #[arg(long, value_name = "NUMBER")]
    kube_api_burst: Option<String>,

    /// No effect: the agent has no API client.
    #[arg(long, value_name = "TYPE")]
    kube_api_content_type: Option<String>,

    /// No effect: the agent has no API client.
    #[arg(long, value_name = "NUMBER")]
    kube_api_qps: Option<String>,

    /// No effect: the agent has no API client; --controller names the controllers.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,

    /// No effect: the agent has no API client; --controller names the controllers.
    #[arg(long, value_name = "URL")]
    master: Option<String>,

    /// No effect: the agent serves no profiles.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
        require_equals = true)]
    profiling: Option<String>,
}

/// Reason why a flag has no effect.
const NO_CLIENT: &str = "the agent has no API client";
const AT_ONCE: &str = "changes are programmed as they arrive";

impl KubeProxyArgs {
    /// Returns `true` if the verbosity asks for the log level debug, which other log flags
    /// override.
    pub(super) fn is_verbose(&self) -> bool {
        self.verbosity >= Some(DEBUG_VERBOSITY)
    }

    /// The node's own address, if the bind address is specific.
    pub(super) fn node_ip(&self) -> Option<IpAddr> {
        self.bind_address
            .filter(|address| !address.is_unspecified())
    }

    /// Applies the flags of the process, and logs a line for each flag without effect.
    pub fn apply(&self) {
        for (flag, reason) in self.without_effect() {
            tracing::info!("--{flag} has no effect: {reason}");
        }
        if let Some(score) = self.oom_score_adj
            && let Err(error) = set_oom_score(score, Path::new(OOM_SCORE_FILE))
        {
            tracing::warn!("--oom-score-adj {score} is not applied: {error:#}");
        }
    }

    /// Flags that were given and have no effect, each with the reason.
    fn without_effect(&self) -> Vec<(&'static str, &'static str)> {
        let verbosity_is_info = self.verbosity.is_some_and(|v| v < DEBUG_VERBOSITY);
        let bound_to_all = self.bind_address.is_some() && self.node_ip().is_none();
        let all = [
            (
                "v",
                verbosity_is_info,
                "levels below 4 are the default, info",
            ),
            (
                "bind-address",
                bound_to_all,
                "an unspecified address names no address of the node",
            ),
            (
                "bind-address-hard-fail",
                self.bind_address_hard_fail.is_some(),
                "the agent ends whenever one of its ports cannot be bound",
            ),
            (
                "config-sync-period",
                self.config_sync_period.is_some(),
                NO_CLIENT,
            ),
            (
                "feature-gates",
                self.feature_gates.is_some(),
                "these gates are features of kube-proxy",
            ),
            (
                "iptables-localhost-nodeports",
                self.iptables_localhost_nodeports.is_some(),
                "node ports on 127.0.0.1 exist in kube-proxy's iptables mode only",
            ),
            (
                "iptables-min-sync-period",
                self.iptables_min_sync_period.is_some(),
                AT_ONCE,
            ),
            (
                "iptables-sync-period",
                self.iptables_sync_period.is_some(),
                "--sync-period applies to IPVS and to iptables alike",
            ),
            (
                "ipvs-min-sync-period",
                self.ipvs_min_sync_period.is_some(),
                AT_ONCE,
            ),
            ("kube-api-burst", self.kube_api_burst.is_some(), NO_CLIENT),
            (
                "kube-api-content-type",
                self.kube_api_content_type.is_some(),
                NO_CLIENT,
            ),
            ("kube-api-qps", self.kube_api_qps.is_some(), NO_CLIENT),
            ("kubeconfig", self.kubeconfig.is_some(), NO_CLIENT),
            ("master", self.master.is_some(), NO_CLIENT),
            (
                "profiling",
                self.profiling.is_some(),
                "the agent serves no profiles",
            ),
        ];
        let given = all.into_iter().filter(|(_, given, _)| *given);
        given.map(|(flag, _, reason)| (flag, reason)).collect()
    }
}

fn set_oom_score(score: i16, file: &Path) -> anyhow::Result<()> {
    std::fs::write(file, score.to_string()).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::args::{Cli, DataplaneKind};

    fn parse(args: &[&str]) -> Result<KubeProxyArgs, clap::Error> {
        let cli = Cli::try_parse_from([&["portolan-agent"], args].concat())?;
        Ok(cli.run.kube_proxy)
    }

    #[test]
    fn modes_are_names_of_dataplanes_and_others_are_refused_with_the_reason() {
        for (mode, expected) in [
            ("ipvs", DataplaneKind::Ipvs),
            ("nftables", DataplaneKind::Nftables),
            ("auto", DataplaneKind::Auto),
        ] {
            for flag in ["dataplane", "proxy-mode"] {
                let flag = format!("--{flag}={mode}");
                let cli = Cli::try_parse_from(["portolan-agent", &flag]).unwrap();
                assert_eq!(cli.run.kernel.dataplane, expected, "{flag}");
            }
        }
        for (mode, expected) in [
            ("", "nftables behaves the same"),
            ("iptables", "nftables behaves the same"),
            ("kernelspace", "on Windows"),
            ("ipv", "possible values: ipvs"),
        ] {
            let flag = format!("--proxy-mode={mode}");
            let error = parse(&[&flag]).unwrap_err().to_string();
            assert!(error.contains(expected), "{mode}: {error}");
            assert!(error.contains("--dataplane"), "{mode}: {error}");
        }
    }

    #[test]
    fn each_flag_without_effect_has_a_reason() {
        let args = parse(&[
            "--v=2",
            "--bind-address=0.0.0.0",
            "--bind-address-hard-fail",
            "--config-sync-period=15m0s",
            "--feature-gates=A=true,B=false",
            "--iptables-localhost-nodeports=false",
            "--iptables-min-sync-period=1s",
            "--iptables-sync-period=30s",
            "--ipvs-min-sync-period=0s",
            "--kube-api-burst=10",
            "--kube-api-content-type=application/vnd.kubernetes.protobuf",
            "--kube-api-qps=5",
            "--kubeconfig=/var/lib/kube-proxy/kubeconfig.conf",
            "--master=https://10.0.0.1",
            "--profiling",
        ])
        .unwrap();
        let reasons = args.without_effect();
        assert_eq!(reasons.len(), 15);
        // The help text says so too.
        let command = Cli::command();
        for (flag, _) in reasons {
            let arg = command
                .get_arguments()
                .find(|arg| arg.get_long() == Some(flag));
            let help = arg.and_then(|arg| arg.get_help()).unwrap().to_string();
            let acts = ["v", "bind-address"].contains(&flag);
            assert!(acts || help.starts_with("No effect: "), "{flag}: {help}");
        }
        assert_eq!(parse(&[]).unwrap().without_effect(), []);
    }

    #[test]
    fn flags_with_a_counterpart_act() {
        let args = parse(&[
            "-v",
            "4",
            "--bind-address=192.0.2.1",
            "--oom-score-adj=-999",
        ])
        .unwrap();
        assert_eq!(args.without_effect(), []);
        assert_eq!(args.node_ip(), Some([192, 0, 2, 1].into()));
        let file = tempfile::NamedTempFile::new().unwrap();
        set_oom_score(args.oom_score_adj.unwrap(), file.path()).unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "-999");
        assert!(parse(&["--oom-score-adj=-1001"]).is_err());
    }
}
