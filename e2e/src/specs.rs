// SPDX-License-Identifier: Apache-2.0

//! Kubernetes' own end-to-end specs: what to run, and the report of a run.

use std::env;
use std::fmt;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

/// The name of the choice of all specs that concern a service proxy.
const ALL: &str = "all";
/// The specs of networks that every conformant cluster passes.
const CONFORMANCE: &str = r"\[sig-network\].*\[Conformance\]";
/// The specs of networks that a service proxy, the names of Services or the rig itself can fail.
const NETWORK: &str = concat!(
    r"\[sig-network\] (Services|Networking|EndpointSlice|EndpointSliceMirroring|DNS|HostPort|Proxy",
    r"|Traffic Distribution|Topology Hints|Conntrack|Connectivity Pod Lifecycle|NoSNAT|API Server|KubeProxy",
    r"|Endpoints|EndpointsController|Service CIDRs|Service endpoints latency|\[Feature:IPv6DualStack\]) "
);
/// Specs that stop servers, take long, or need a cloud or the internet.
const SKIPPED: &str =
    r"\[Disruptive\]|\[Slow\]|\[Provider:|\[Feature:Networking-|\[Feature:KubeProxyNFAcct\]";

/// The program that carries out Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// Portolan, installed by its chart, with agents of this dataplane.
    Portolan(&'static str),
    /// kube-proxy in this mode.
    KubeProxy(String),
}

impl Proxy {
    fn parse(name: &str) -> Result<Self> {
        match (name, name.strip_prefix("kube-proxy-")) {
            ("portolan", _) => Ok(Self::Portolan("ipvs")),
            ("portolan-nftables", _) => Ok(Self::Portolan("nftables")),
            (_, Some(mode @ ("iptables" | "ipvs" | "nftables"))) => {
                Ok(Self::KubeProxy(mode.into()))
            }
            _ => bail!(
                "PROXY={name}: portolan, portolan-nftables, kube-proxy-iptables, kube-proxy-ipvs or kube-proxy-nftables"
            ),
        }
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Portolan("ipvs") => f.write_str("portolan"),
            Self::Portolan(dataplane) => write!(f, "portolan-{dataplane}"),
            Self::KubeProxy(mode) => write!(f, "kube-proxy-{mode}"),
        }
    }
}

/// A choice of specs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The service proxy of the cluster.
    pub proxy: Proxy,
    /// The number of nodes, which are in three zones in turn.
    pub nodes: u8,
    /// A regular expression of names to run.
    pub focus: String,
    /// A regular expression of names to leave out.
    pub skip: String,
    /// The number of specs that run at once; serial ones run alone after all others.
    pub at_once: u8,
    /// The deadline of all specs together, in minutes.
    pub minutes: u64,
}

impl Run {
    /// The choice in the variables `PORTOLAN_SPECS_PROXY`, `_NODES`, `_FOCUS`, `_SKIP`, `_AT_ONCE` and
    /// `_MINUTES`; without them, Portolan on two nodes and the `[Conformance]` specs of networks.
    pub fn from_environment() -> Result<Self> {
        Self::from_variables(|name| env::var(format!("PORTOLAN_SPECS_{name}")).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |name, otherwise: &str| match variable(name) {
            Some(value) if !value.is_empty() => value,
            _ => otherwise.into(),
        };
        let number = |name, otherwise| {
            let text = given(name, otherwise);
            text.parse::<u8>().with_context(|| format!("{name}={text}"))
        };
        let focus = match given("FOCUS", CONFORMANCE) {
            all if all == ALL => NETWORK.into(),
            focus => focus,
        };
        Ok(Self {
            proxy: Proxy::parse(&given("PROXY", "portolan"))?,
            nodes: number("NODES", "2")?,
            focus,
            skip: given("SKIP", SKIPPED),
            at_once: number("AT_ONCE", "1")?,
            minutes: number("MINUTES", "170")?.into(),
        })
    }

    /// True for the choice without variables.
    #[must_use]
    pub fn is_conformance(&self) -> bool {
        self.focus == CONFORMANCE
    }
}

/// The outcome of a spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The full name, with tags.
    pub name: String,
    /// `passed`, `failed`, `timedout`, `panicked`, `skipped` and others of Ginkgo.
    pub state: String,
    /// The time it took, in seconds.
    pub seconds: f64,
    /// The reason of a failure, or why the spec has left itself out; else empty.
    pub message: String,
}

impl Outcome {
    /// True if it passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.state == "passed"
    }

    /// True if the spec was chosen and has left itself out, as one does that needs more nodes.
    #[must_use]
    pub fn left_out(&self) -> bool {
        self.state == "skipped"
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {:5.0} s  {}", self.state, self.seconds, self.name)?;
        match self.message.lines().next() {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Option<Vec<Report>>,
    special_suite_failure_reasons: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    run_time: f64,
    failure: Option<Failure>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

/// Reads Ginkgo's JSON report: the specs that ran or left themselves out, and the set-up of the suite if that failed.
pub fn parse(report: &str) -> Result<Vec<Outcome>> {
    let suites: Vec<Suite> = serde_json::from_str(report).context("Ginkgo's report")?;
    ensure!(!suites.is_empty(), "Ginkgo's report has no suite");
    let mut outcomes = Vec::new();
    for suite in suites {
        outcomes.extend(suite.spec_reports.into_iter().flatten().filter_map(outcome));
        let reasons = suite.special_suite_failure_reasons.unwrap_or_default();
        ensure!(
            !outcomes.is_empty() || reasons.is_empty(),
            "no spec ran: {}",
            reasons.join(", ")
        );
    }
    Ok(outcomes)
}

fn outcome(report: Report) -> Option<Outcome> {
    let is_spec = report.leaf_node_type == "It";
    let message = report.failure.map(|it| it.message).unwrap_or_default();
    // One that was not chosen gives no reason.
    let is_not_chosen = match report.state.as_str() {
        "pending" => true,
        "skipped" => message.is_empty(),
        _ => false,
    };
    if is_not_chosen || (!is_spec && report.state == "passed") {
        return None;
    }
    let mut words = report.container_hierarchy_texts.unwrap_or_default();
    words.push(if is_spec {
        report.leaf_node_text
    } else {
        report.leaf_node_type
    });
    Some(Outcome {
        name: words.join(" "),
        state: report.state,
        seconds: report.run_time / 1e9,
        message,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(text: &str, state: &str) -> serde_json::Value {
        json!({ "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": text,
                "State": state, "RunTime": 1_500_000_000_u64, "Failure": { "Message": "first\nsecond" } })
    }

    #[test]
    fn specs_that_ran_are_read() {
        let set_up = json!({ "ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite",
                             "LeafNodeText": "", "State": "passed", "RunTime": 1 });
        let mut not_chosen = spec("other", "skipped");
        not_chosen["Failure"] = json!({ "Message": "" });
        let needs_nodes = spec("spreads", "skipped");
        let reports = [set_up, spec("works", "failed"), not_chosen, needs_nodes];
        let report = json!([{ "SpecReports": reports, "SpecialSuiteFailureReasons": null }]);
        let outcomes = parse(&report.to_string()).unwrap();
        assert_eq!(outcomes.len(), 2);
        assert!(!outcomes[0].passed() && !outcomes[0].left_out());
        assert!(!outcomes[1].passed() && outcomes[1].left_out());
        assert!(outcomes[1].to_string().ends_with("Services spreads: first"));
        assert_eq!(
            outcomes[0].to_string(),
            "failed       2 s  [sig-network] Services works: first"
        );
    }

    #[test]
    fn a_set_up_that_fails_is_an_outcome() {
        let set_up = json!({ "ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite",
                             "LeafNodeText": "", "State": "failed", "RunTime": 1 });
        let report = json!([{ "SpecReports": [set_up] }]).to_string();
        assert_eq!(parse(&report).unwrap()[0].name, "SynchronizedBeforeSuite");
        let report = json!([{ "SpecialSuiteFailureReasons": ["bad flags"] }]).to_string();
        let error = parse(&report).unwrap_err().to_string();
        assert_eq!(error, "no spec ran: bad flags");
        assert!(parse("[]").is_err());
    }

    #[test]
    fn variables_choose_specs() {
        let run = Run::from_variables(|_| Some(String::new())).unwrap();
        assert!(run.is_conformance());
        assert_eq!(run.proxy, Proxy::Portolan("ipvs"));
        let run = Run::from_variables(|name| {
            let value = match name {
                "PROXY" => "kube-proxy-ipvs",
                "FOCUS" => "all",
                "AT_ONCE" => "3",
                "NODES" => "6",
                _ => "",
            };
            Some(value.into())
        });
        let run = run.unwrap();
        assert_eq!(run.proxy.to_string(), "kube-proxy-ipvs");
        assert!(!run.is_conformance());
        assert!(run.focus.contains("Traffic Distribution"));
        assert_eq!((run.nodes, run.at_once, run.minutes), (6, 3, 170));
        for (name, dataplane) in [("portolan", "ipvs"), ("portolan-nftables", "nftables")] {
            let proxy = Proxy::parse(name).unwrap();
            assert_eq!(proxy, Proxy::Portolan(dataplane));
            assert_eq!(proxy.to_string(), name);
        }
        let error = Run::from_variables(|_| Some("kube-proxy".into())).unwrap_err();
        assert!(error.to_string().starts_with("PROXY=kube-proxy:"));
    }
}
