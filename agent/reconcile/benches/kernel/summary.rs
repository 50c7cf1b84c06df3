// SPDX-License-Identifier: Apache-2.0

//! Runs all measurements and prints the comparison.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use portolan_e2e::figure::{Goal, figure};

use crate::{WAYS, run_way};

/// Measurements of about a second, which alternate. The first turn, in which the guest loads
/// modules and programs, does not count.
const IN_TURN: [&str; 4] = ["floor", "cold", "nft-floor", "nft-cold"];
const TURNS: u32 = 5;

/// Measured values by measurement and name, one for each repetition.
#[derive(Default)]
struct Values(BTreeMap<(String, String), Vec<f64>>);

impl Values {
    /// The median.
    fn get(&self, way: &str, name: &str) -> Option<f64> {
        let mut values = self.0.get(&(way.to_owned(), name.to_owned()))?.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    /// Runs a measurement and adds its values.
    fn measure(&mut self, way: &str) -> Result<()> {
        for line in run_way(way)?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["value", name, value] = words[..] {
                let value = value.parse().with_context(|| line.to_owned())?;
                let key = (way.to_owned(), name.to_owned());
                self.0.entry(key).or_default().push(value);
            }
        }
        Ok(())
    }

    /// Prints a value of a measurement.
    fn one(&self, way: &str, name: &str, unit: &str, goal: Option<Goal>) {
        if let Some(value) = self.get(way, name) {
            let way = way.replace('-', "_");
            figure(&format!("agent_{way}_{name}"), value, unit, goal);
        }
    }

    /// Prints the ratio of two values.
    fn ratio(&self, says: &str, of: (&str, &str), to: (&str, &str), goal: Goal) {
        if let (Some(of), Some(to)) = (self.get(of.0, of.1), self.get(to.0, to.1)) {
            figure(says, of / to, "times", Some(goal));
        }
    }
}

/// Runs the measurements that this kernel can run.
pub(crate) fn run(can_run: impl Fn(&str) -> bool) -> Result<()> {
    let wanted = std::env::var("PORTOLAN_BENCH_WAYS").unwrap_or_default();
    let is_wanted =
        |way: &&str| wanted.is_empty() || wanted.split(',').any(|wanted| wanted == *way);
    let (quick, slow): (Vec<_>, Vec<_>) = WAYS
        .into_iter()
        .filter(is_wanted)
        .filter(|way| can_run(way))
        .partition(|way| IN_TURN.contains(way));
    let mut values = Values::default();
    for turn in 0..=TURNS {
        for way in &quick {
            values.measure(way)?;
        }
        if turn == 0 {
            values = Values::default();
        }
    }
    for way in slow {
        values.measure(way)?;
    }
    say(&values);
    Ok(())
}

fn say(values: &Values) {
    for way in ["floor", "one", "moby", "ipvsadm", "product"] {
        values.one(way, "cold", "ms", None);
    }
    values.one("cold", "cold", "ms", None);
    for part in ["constant", "sets", "routes"] {
        values.one("floor", part, "ms", None);
    }
    for part in [
        "read", "desire", "plan", "sets", "rules", "routes", "ipvs", "advance",
    ] {
        values.one("phases", part, "ms", None);
    }
    let cold = ("cold", "cold");
    let ratio = |says, of, to, goal| values.ratio(says, of, to, goal);
    ratio(
        "agent_cold_to_floor",
        cold,
        ("floor", "cold"),
        Goal::AtMost(2.0),
    );
    ratio(
        "agent_one_by_one_to_cold",
        ("one", "cold"),
        cold,
        Goal::AtLeast(5.0),
    );
    ratio(
        "agent_moby_to_cold",
        ("moby", "cold"),
        cold,
        Goal::AtLeast(10.0),
    );
    ratio(
        "agent_ipvsadm_to_cold",
        ("ipvsadm", "cold"),
        cold,
        Goal::AtLeast(40.0),
    );
    say_one_endpoint(values);
    say_product(values);
    say_nftables(values);
}

fn say_nftables(values: &Values) {
    values.one("nft-floor", "mebibytes", "MiB", None);
    for way in ["nft-floor", "nft-cold"] {
        values.one(way, "cold", "ms", None);
    }
    let ratio = |says, of, to, goal| values.ratio(says, of, to, goal);
    let (cold, floor) = (("nft-cold", "cold"), ("nft-floor", "cold"));
    ratio("agent_nft_cold_to_floor", cold, floor, Goal::AtMost(2.0));
    for way in ["nft-small", "nft"] {
        values.one(way, "endpoint", "us", None);
        let goal = Goal::AtMost(25.0);
        values.one(way, "endpoint_kernel", "us", Some(goal));
    }
    let (large, small) = (("nft", "endpoint"), ("nft-small", "endpoint"));
    ratio(
        "agent_nft_endpoint_10000_to_100",
        large,
        small,
        Goal::AtMost(1.5),
    );
    values.one("nft", "rss", "MiB", Some(Goal::AtMost(60.0)));
    values.one("nft", "start", "ms", None);
    values.one("kube-proxy-nft", "start", "ms", None);
    values.one("kube-proxy-nft", "rss", "MiB", None);
    let (theirs, ours) = (("kube-proxy-nft", "start"), ("nft", "start"));
    ratio(
        "agent_kube_proxy_nft_start_to_start",
        theirs,
        ours,
        Goal::AtLeast(40.0),
    );
}

fn say_one_endpoint(values: &Values) {
    for way in ["small", "product"] {
        values.one(way, "endpoint", "us", None);
        values.one(
            way,
            "endpoint_messages",
            "messages",
            Some(Goal::AtMost(1.0)),
        );
    }
    let (large, small) = (("product", "endpoint"), ("small", "endpoint"));
    values.ratio(
        "agent_endpoint_10000_to_100",
        large,
        small,
        Goal::AtMost(1.5),
    );
}

fn say_product(values: &Values) {
    let ratio = |says, of, to, goal| values.ratio(says, of, to, goal);
    values.one("product", "rss", "MiB", Some(Goal::AtMost(60.0)));
    values.one("kube-proxy", "rss", "MiB", None);
    ratio(
        "agent_kube_proxy_rss_to_rss",
        ("kube-proxy", "rss"),
        ("product", "rss"),
        Goal::AtLeast(3.0),
    );
    values.one("product", "start", "ms", None);
    values.one("kube-proxy", "start", "ms", None);
    ratio(
        "agent_kube_proxy_start_to_start",
        ("kube-proxy", "start"),
        ("product", "start"),
        Goal::AtLeast(1.0),
    );
    values.one("product", "rss_peak", "MiB", None);
    values.one("product", "settle", "ms", None);
    values.one("product", "restart", "ms", None);
    values.one(
        "product",
        "restart_messages",
        "messages",
        Some(Goal::AtMost(0.0)),
    );
    values.one("product", "read", "ms", None);
    let fastest = ("product", "read_fastest");
    ratio(
        "agent_read_to_fastest",
        ("product", "read"),
        fastest,
        Goal::AtMost(2.0),
    );
    values.one("product", "check_cpu", "ms", Some(Goal::AtMost(10.0)));
    values.one("product", "first_check_cpu", "ms", None);
    values.one("product", "compare_cpu", "ms", None);
    for name in ["churn_1", "churn_2", "churn_3"] {
        values.one("product", name, "ms", None);
    }
    let (last, first) = (("product", "churn_3"), ("product", "churn_1"));
    ratio("agent_churn_third_to_first", last, first, Goal::AtMost(2.0));
    for name in ["renew_1", "renew_2", "renew_3"] {
        values.one("product", name, "ms", None);
    }
    let (last, first) = (("product", "renew_3"), ("product", "renew_1"));
    ratio("agent_renew_third_to_first", last, first, Goal::AtMost(2.0));
}
