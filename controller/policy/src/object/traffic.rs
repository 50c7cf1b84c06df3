// SPDX-License-Identifier: Apache-2.0

//! Policies of traffic.

use portolan_director::SchedulerName;
use portolan_director::read::Path;

use super::{Meta, spec};
use crate::faults::Faults;
use crate::selector::{Selector, Services, check_key};
use crate::spec::{
    MemberSpec, SelectorSpec, SpillOver, ThresholdSpec, TierSpec, TrafficPolicySpec,
};
use crate::{Fault, PolicyError};

/// The greatest weight of a cluster in a tier.
pub const MAX_WEIGHT: u16 = 1000;

/// The most tiers of a policy.
pub const MAX_TIERS: usize = 8;

/// Rule for the distribution of connections to a Service among clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficPolicy {
    /// Name, age and labels.
    pub meta: Meta,
    /// Its priority among policies that select a Service equally closely.
    pub priority: i32,
    /// The Services, by the names of their imports.
    pub services: Services,
    /// The importing clusters.
    pub clusters: Selector,
    /// Tiers in order of preference, at most [`MAX_TIERS`]; none for one of all clusters.
    pub tiers: Vec<Tier>,
    /// The ready endpoints below which load is given away.
    pub min_healthy: Threshold,
    /// Way in which it is given away.
    pub spill_over: SpillOver,
    /// Percentage of health of all tiers together, 0 to 100, below which all endpoints are used
    /// alike; 0 for never.
    pub panic_threshold: u8,
    /// Real servers of one record and family, 1 to 4000; the set's bound if none.
    pub max_endpoints: Option<u32>,
    /// The kernel's scheduler; the rule of a single cluster if none.
    pub scheduler: Option<SchedulerName>,
}

/// Clusters that are preferred alike.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tier {
    /// Members without weights.
    Clusters(Vec<Member>),
    /// Members, each with the weight of each of its clusters, 0 to [`MAX_WEIGHT`].
    Weighted(Vec<(Member, u16)>),
    /// Clusters that have the importing cluster's value of all these properties.
    SameAs(Vec<String>),
    /// All that no tier before has.
    Rest,
}

/// Clusters of a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// The importing cluster.
    Local,
    /// Those that a selector selects.
    Selected(Selector),
}

/// A least number of ready endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Threshold {
    /// A number, at least 1.
    Number(u32),
    /// A percentage of those that are not terminating, 1 to 100.
    Percent(u8),
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl TrafficPolicy {
    /// The object that a spec describes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn new(meta: Meta, given: &TrafficPolicySpec) -> Result<Self, Vec<Fault>> {
        let mut faults = Faults::default();
        let tiers = tiers(&given.tiers, &spec("tiers"), &mut faults);
        let threshold = given.min_healthy.as_ref();
        let min_healthy = threshold.map_or(Threshold::Number(1), |given| {
            threshold_of(given, &spec("minHealthy"), &mut faults)
        });
        let default_spill = match threshold {
            Some(_) => SpillOver::Proportional,
            None => SpillOver::AllAtOnce,
        };
        let panic_threshold = faults.percent(&spec("panicThreshold"), given.panic_threshold, 0);
        let policy = Self {
            meta,
            priority: given.priority,
            services: Services::new(&given.services, &spec("services"), &mut faults),
            clusters: Selector::new(&given.clusters, &spec("clusters"), &mut faults),
            tiers,
            min_healthy,
            spill_over: given.spill_over.unwrap_or(default_spill),
            panic_threshold,
            max_endpoints: given.max_endpoints,
            scheduler: given.scheduler,
        };
        faults.into_result(policy)
    }
}

fn threshold_of(given: &ThresholdSpec, path: &Path, faults: &mut Faults) -> Threshold {
    let parsed = match given {
        ThresholdSpec::Number(number) => u32::try_from(*number)
            .ok()
            .filter(|number| *number > 0)
            .map(Threshold::Number),
        ThresholdSpec::Text(text) => text
            .strip_suffix('%')
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|percent| (1..=100).contains(percent))
            .map(Threshold::Percent),
    };
    parsed.unwrap_or_else(|| {
        let found = match given {
            ThresholdSpec::Number(number) => number.to_string(),
            ThresholdSpec::Text(text) => format!("{text:?}"),
        };
        let expected = "a number of at least 1, or a percentage of \"1%\" to \"100%\"";
        faults.add(path, PolicyError::Threshold { found, expected });
        Threshold::Number(1)
    })
}

fn tiers(given: &[TierSpec], path: &Path, faults: &mut Faults) -> Vec<Tier> {
    if given.len() > MAX_TIERS {
        faults.add(path, PolicyError::TierCount(given.len()));
    }
    let mut tiers = Vec::new();
    let mut rest = None;
    for (index, tier) in given.iter().enumerate() {
        let path = path.item(index);
        if let Some(rest) = rest {
            faults.add(&path, PolicyError::AfterRest(rest));
        }
        if tier.rest == Some(true) {
            rest = rest.or(Some(index));
        }
        tiers.extend(tier_of(tier, &path, faults));
    }
    tiers
}

fn tier_of(given: &TierSpec, path: &Path, faults: &mut Faults) -> Option<Tier> {
    let rest = given.rest == Some(true);
    match (&given.clusters, &given.same_as, rest) {
        (Some(members), None, false) => Some(members_of(members, &path.field("clusters"), faults)),
        (None, Some(properties), false) => {
            let path = path.field("sameAs");
            if properties.is_empty() {
                faults.add(&path, PolicyError::TierEmpty("property"));
            }
            for (index, property) in properties.iter().enumerate() {
                check_key(property, &path.item(index), faults);
            }
            Some(Tier::SameAs(properties.clone()))
        }
        (None, None, true) => Some(Tier::Rest),
        (clusters, same_as, _) => {
            let given = [
                clusters.as_ref().map(|_| "clusters"),
                same_as.as_ref().map(|_| "sameAs"),
                rest.then_some("rest"),
            ];
            let names: Vec<&str> = given.into_iter().flatten().collect();
            let found = if names.is_empty() {
                String::from("none")
            } else {
                names.join(" and ")
            };
            faults.add(path, PolicyError::TierKind(found));
            None
        }
    }
}

fn members_of(given: &[MemberSpec], path: &Path, faults: &mut Faults) -> Tier {
    if given.is_empty() {
        faults.add(path, PolicyError::TierEmpty("member"));
    }
    let is_weighted = given.iter().any(|member| member.weight.is_some());
    let mut weighted = Vec::new();
    for (index, spec) in given.iter().enumerate() {
        let path = path.item(index);
        let member = member_of(spec, &path, faults);
        let weight = weight_of(spec, is_weighted, &path, faults);
        weighted.push((member, weight));
    }
    if is_weighted {
        Tier::Weighted(weighted)
    } else {
        Tier::Clusters(weighted.into_iter().map(|(member, _)| member).collect())
    }
}

fn weight_of(given: &MemberSpec, is_weighted: bool, path: &Path, faults: &mut Faults) -> u16 {
    let path = path.field("weight");
    let Some(number) = given.weight else {
        if is_weighted {
            faults.add(&path, PolicyError::WeightMissing);
        }
        return 0;
    };
    let weight = u16::try_from(number).ok();
    weight
        .filter(|weight| *weight <= MAX_WEIGHT)
        .unwrap_or_else(|| {
            faults.add(&path, PolicyError::WeightRange(number));
            0
        })
}

fn member_of(given: &MemberSpec, path: &Path, faults: &mut Faults) -> Member {
    let selector = SelectorSpec {
        names: given.names.clone(),
        match_labels: given.match_labels.clone(),
        match_expressions: given.match_expressions.clone(),
    };
    let is_empty = selector == SelectorSpec::default();
    match (given.local, is_empty) {
        (true, true) => Member::Local,
        (false, _) => Member::Selected(Selector::new(&selector, path, faults)),
        (true, false) => {
            faults.add(path, PolicyError::LocalAndSelector);
            Member::Local
        }
    }
}
