// SPDX-License-Identifier: Apache-2.0

//! Rules and sets on demand.

use super::*;
use crate::{IncrementalDesired, Names, RulesMode};

fn on_demand() -> Config {
    Config {
        rules_mode: RulesMode::OnDemand,
        ..Config::default()
    }
}

/// A load balancer at an address of each family, with NAT.
fn plain() -> Record {
    let masquerade = || profile(ForwardingMethod::Masquerade);
    let backends = [
        ("10.0.0.1:80", masquerade()),
        ("[fd00::1]:80", masquerade()),
    ];
    balanced(&backends, &[VIP, "2001:db8::10"])
}

fn wanted(record: &Record, observed: &KernelState) -> Desired {
    crate::desire(&table_with(record, None), &facts(), &on_demand(), observed)
}

/// The kernel after all steps to a desired state.
fn programmed(desired: &Desired, observed: &KernelState) -> KernelState {
    let mut state = observed.clone();
    plan(desired, observed, &on_demand())
        .iter()
        .for_each(|step| state.advance(step));
    state
}

fn families_with_rules(desired: &Desired) -> Vec<Family> {
    desired.state.rules.keys().copied().collect()
}

#[test]
fn load_balancers_that_need_no_rules_have_none() {
    let mut direct = plain();
    change(&mut direct, |balancing| {
        balancing
            .profiles
            .iter_mut()
            .for_each(|profile| profile.forwarding = ForwardingMethod::Direct);
    });
    for record in [plain(), direct] {
        let desired = wanted(&record, &KernelState::default());
        assert_eq!(families_with_rules(&desired), []);
        let sets: Vec<_> = desired.state.sets.keys().map(String::as_str).collect();
        assert_eq!(sets, ["KUBE-6-PORTOLAN-OWNED", "KUBE-PORTOLAN-OWNED"]);
        assert_eq!(desired.state.virtual_servers.len(), 2);
        let state = programmed(&desired, &KernelState::default());
        assert!(state.rules.is_empty(), "{:?}", state.rules.keys());
        let owned = state.virtual_servers.keys();
        assert!(owned.clone().all(|key| state.owns(&Names::default(), key)));
        assert_eq!(plan(&wanted(&record, &state), &state, &on_demand()), []);
    }
    let always = crate::desire(
        &table_with(&plain(), None),
        &facts(),
        &Config::default(),
        &KernelState::default(),
    );
    assert_eq!(families_with_rules(&always), Family::ALL);
}

#[test]
fn a_family_has_rules_for_the_first_record_that_needs_them() {
    let of_v4 = |record: &mut Record, change: fn(&mut Frontend)| {
        let mut frontends = record.frontends.iter_mut();
        if let Some(frontend) = frontends.find(|frontend| frontend.family() == Family::V4) {
            change(frontend);
        }
    };
    let changes: [fn(&mut Frontend); 3] = [
        |frontend| frontend.masquerade = true,
        |frontend| frontend.source_ranges = vec!["10.0.0.0/8".parse().unwrap()],
        |frontend| {
            frontend.kind = FrontendKind::BalancedRanges;
            (frontend.port, frontend.ranges) =
                (0, vec![portolan_model::PortRange { first: 1, last: 2 }]);
        },
    ];
    for change in changes {
        let mut record = plain();
        for frontend in &mut record.frontends {
            frontend.masquerade = false;
        }
        of_v4(&mut record, change);
        let desired = wanted(&record, &KernelState::default());
        assert_eq!(families_with_rules(&desired), [Family::V4]);
        for name in &desired.state.rules[&Family::V4].sets {
            assert!(desired.state.sets.contains_key(name), "{name}");
        }
    }
    let service = vip(FrontendKind::ClusterIp, "fd00:10:96::1", true);
    let service = self::record("s", Protocol::Tcp, vec![service]);
    let desired = wanted(&service, &KernelState::default());
    assert_eq!(families_with_rules(&desired), [Family::V6]);
}

#[test]
fn rules_stay_with_empty_sets_when_nothing_needs_them_any_more() {
    let mut needs = plain();
    needs.frontends[0].masquerade = true;
    let none = KernelState::default();
    let state = programmed(&wanted(&needs, &none), &none);
    assert!(!state.sets["KUBE-EXTERNAL-IP"].entries.is_empty());

    let mut needs_none = needs.clone();
    needs_none.frontends[0].masquerade = false;
    let desired = wanted(&needs_none, &state);
    assert_eq!(families_with_rules(&desired), [Family::V4]);
    let state = programmed(&desired, &state);
    assert!(state.sets["KUBE-EXTERNAL-IP"].entries.is_empty());
    assert_eq!(plan(&wanted(&needs_none, &state), &state, &on_demand()), []);
}

#[test]
fn the_first_record_that_needs_rules_needs_all_records() {
    let (before, facts, none) = (table_with(&plain(), None), facts(), KernelState::default());
    let mut kept = IncrementalDesired::new(&before, &facts, &on_demand(), &none);
    let state = programmed(kept.desired(), &none);
    let mut weighted = plain();
    weighted.destinations[0].weight = 7;
    let after = table_with(&weighted, None);
    let touched = kept.update(&before, &after, &facts, &on_demand(), &state);
    assert!(touched.is_some(), "a weight needs none");
    let mut needs = weighted;
    needs.frontends[0].masquerade = true;
    let (before, after) = (after, table_with(&needs, None));
    assert_eq!(
        kept.update(&before, &after, &facts, &on_demand(), &state),
        None
    );
}
