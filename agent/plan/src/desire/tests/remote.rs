// SPDX-License-Identifier: Apache-2.0

//! Real servers of imports, to which TCP segments are kept small.

use super::*;
use crate::plan;

const SETS: [&str; 2] = ["KUBE-REMOTE", "KUBE-6-REMOTE"];

fn web(service: &str, protocol: Protocol) -> Record {
    let frontend = |ip| vip(FrontendKind::ClusterIp, ip, true);
    let mut record = record(service, protocol, vec![frontend("10.112.0.1")]);
    record.destinations = ["10.244.0.1:8080", "10.245.0.1:8080", "[fd00::1]:8080"]
        .map(|address| Destination::new(address.parse().unwrap()))
        .into();
    record
}

fn import() -> Record {
    web("web@clusterset", Protocol::Tcp)
}

fn wanted(records: Vec<Record>, config: &Config, observed: &KernelState) -> Desired {
    desire(&table(records), &facts(), config, observed)
}

/// The entries of the sets, for those that there are.
fn entries(state: &KernelState) -> [Option<Vec<String>>; 2] {
    SETS.map(|name| {
        let set = state.sets.get(name)?;
        Some(set.entries.iter().map(ToString::to_string).collect())
    })
}

fn clamps(state: &KernelState) -> Vec<Family> {
    let rules = state.rules.iter();
    rules
        .filter(|(_, rules)| rules.clamps())
        .map(|(family, _)| *family)
        .collect()
}

/// The kernel after all steps to a desired state.
fn programmed(desired: &Desired, observed: &KernelState, config: &Config) -> KernelState {
    let mut state = observed.clone();
    plan(desired, observed, config)
        .iter()
        .for_each(|step| state.advance(step));
    state
}

fn off() -> Config {
    Config {
        clamp_remote_mss: false,
        ..Config::default()
    }
}

#[test]
fn the_first_import_brings_its_set_and_its_rule() {
    let (config, none) = (Config::default(), KernelState::default());
    let others = vec![
        web("web", Protocol::Tcp),
        web("web@gateway", Protocol::Tcp),
        web("dns@clusterset", Protocol::Udp),
    ];
    let without = wanted(others, &config, &none).state;
    assert_eq!(entries(&without), [None, None]);
    assert_eq!(without.rules.len(), 2);
    assert_eq!(clamps(&without), []);

    let desired = wanted(vec![import()], &config, &none);
    let ends = ["10.244.0.1,tcp:8080", "10.245.0.1,tcp:8080"].map(str::to_owned);
    assert_eq!(entries(&desired.state), [Some(ends.into()), None]);
    assert_eq!(clamps(&desired.state), [Family::V4]);
    assert_eq!(desired.refused, []);
}

/// The rule stays without an import, so that the last one that goes changes no rules.
#[test]
fn an_empty_set_stays_with_its_rule() {
    let config = Config::default();
    let desired = wanted(vec![import()], &config, &KernelState::default());
    let state = programmed(&desired, &KernelState::default(), &config);
    let none = wanted(Vec::new(), &config, &state);
    assert_eq!(entries(&none.state), [Some(Vec::new()), None]);
    assert_eq!(none.state.rules, state.rules);
    let state = programmed(&none, &state, &config);
    assert_eq!(plan(&none, &state, &config), []);
}

#[test]
fn switched_off_there_is_no_rule_and_one_that_was_there_goes() {
    let none = KernelState::default();
    let desired = wanted(vec![import()], &off(), &none);
    assert_eq!(entries(&desired.state), [None, None]);
    let names = desired.state.rules.values().flat_map(|rules| &rules.sets);
    assert!(names.clone().count() > 20 && names.clone().all(|name| !name.ends_with("REMOTE")));

    let on = Config::default();
    let state = programmed(&wanted(vec![import()], &on, &none), &none, &on);
    assert_eq!(clamps(&state), [Family::V4]);
    let desired = wanted(vec![import()], &off(), &state);
    let state = programmed(&desired, &state, &off());
    assert_eq!(clamps(&state), []);
    assert_eq!(entries(&state), [Some(Vec::new()), None]);
    assert_eq!(
        plan(&wanted(vec![import()], &off(), &state), &state, &off()),
        []
    );
}

#[test]
fn an_entry_that_the_kernel_refuses_names_its_import() {
    let desired = wanted(vec![import()], &Config::default(), &KernelState::default());
    let entry = SetEntry::IpPort("10.245.0.1".parse().unwrap(), Protocol::Tcp, 8080);
    let of = desired.records_of(&entry);
    assert_eq!(of, [&key("web@clusterset", Protocol::Tcp)].into());
}
