// SPDX-License-Identifier: Apache-2.0

//! Figures from pairs of rounds.

use std::collections::BTreeMap;

use portolan_e2e::figure::{Goal, figure};

use crate::Pairs;
use crate::flows::{Kind, Round};
use crate::machine::Way;

/// The most that a new flow may cost by our nftables plane, against the direct way.
const NEW_FLOW: f64 = 1.1;
/// The most that a packet of an open flow may cost, against the direct way.
const OPEN_FLOW: f64 = 1.02;

/// Prints all figures: of each way, and ours beside the best kube-proxy.
pub(crate) fn print(measured: &BTreeMap<(Kind, usize, Way), Pairs>) {
    for ((kind, services, way), pairs) in measured {
        let name = format!("path_{}_{}_{services}", kind.name(), way.name());
        let rate = median(pairs.iter().map(|[_, proxy]| 1.0 / proxy.elapsed));
        let unit = match kind {
            Kind::Tcp | Kind::Udp => "flows/s",
            Kind::Open => "packets/s",
        };
        figure(&format!("{name}_rate"), rate, unit, None);
        let cost = mean(pairs.iter().map(|[_, proxy]| proxy.processors * 1e6));
        figure(&format!("{name}_cpu"), cost, "us", None);
        let goal = (*way == Way::Nftables).then_some(Goal::AtMost(match kind {
            Kind::Tcp | Kind::Udp => NEW_FLOW,
            Kind::Open => OPEN_FLOW,
        }));
        hundredths(&format!("{name}_cpu_by_direct"), ratio(pairs), goal);
    }
    beside_kube_proxy(measured);
}

/// Our planes beside the best mode of kube-proxy at each size.
fn beside_kube_proxy(measured: &BTreeMap<(Kind, usize, Way), Pairs>) {
    for ((kind, services, way), pairs) in measured {
        let theirs = Way::ALL
            .into_iter()
            .filter(|way| !way.is_ours())
            .filter_map(|way| measured.get(&(*kind, *services, way)))
            .map(ratio)
            .min_by(f64::total_cmp);
        if let (true, Some(theirs)) = (way.is_ours(), theirs) {
            let name = format!("path_{}_{}_{services}", kind.name(), way.name());
            let name = format!("{name}_cpu_by_best_kube_proxy");
            hundredths(&name, ratio(pairs) / theirs, Some(Goal::AtMost(1.0)));
        }
    }
}

/// The processor time of a way by that of the direct way: sums over all pairs but those of the least and the greatest
/// ratio. A round is some thirty ticks of the clock, so a median over pairs would show steps of three percent.
fn ratio(pairs: &Pairs) -> f64 {
    let of = |[direct, proxy]: &[Round; 2]| proxy.processors / direct.processors;
    let mut pairs: Vec<_> = pairs.iter().collect();
    pairs.sort_by(|one, other| of(one).total_cmp(&of(other)));
    let kept = pairs.get(1..pairs.len().saturating_sub(1));
    let kept = kept.unwrap_or(&pairs);
    let sum = |which: usize| -> f64 { kept.iter().map(|pair| pair[which].processors).sum() };
    sum(1) / sum(0)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A ratio near one, which a figure's one decimal would not show, in percent.
fn hundredths(name: &str, ratio: f64, goal: Option<Goal>) {
    let goal = goal.map(|goal| match goal {
        Goal::AtMost(bound) => Goal::AtMost((bound * 100.0).round()),
        Goal::AtLeast(bound) => Goal::AtLeast((bound * 100.0).round()),
    });
    figure(name, ratio * 100.0, "percent", goal);
}
