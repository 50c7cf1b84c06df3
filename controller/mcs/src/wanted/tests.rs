// SPDX-License-Identifier: Apache-2.0

//! Tests of the condition `Ready` and the families of ServiceImports.

use portolan_federate::imports::{Traffic, TrafficReason};
use portolan_federate::merge::Import;
use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;

use super::*;

fn here(kind: ImportKind, of_import: &[Family], here: &[Family]) -> ImportHere {
    ImportHere {
        import: Arc::new(Import {
            winner: "eu-1".into(),
            clusters: Arc::new(["eu-1".into()].into()),
            kind,
            ports: Vec::new(),
            affinity: Affinity::None,
            internal_local: false,
            traffic_distribution: None,
            cluster_selectors: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            families: of_import.to_vec(),
            conflicts: Vec::new(),
        }),
        families: here.to_vec(),
        sources: Arc::default(),
        nodes: None,
        traffic: Arc::new(Traffic {
            reason: TrafficReason::Alike,
            shadowed: Vec::new(),
            tiers: Vec::new(),
            min_healthy: Threshold::Percent(70),
            spill_over: SpillOver::Proportional,
            panic_threshold: 0,
            max_endpoints: 64,
            scheduler: None,
        }),
    }
}

/// The status and reason of `Ready`, the addresses, and the families.
fn ready(here: &ImportHere, ips: &[IpAddr]) -> (String, Vec<IpAddr>, Vec<Family>) {
    let import = WantedImport::new(here, ips);
    let [condition] = import.conditions.as_slice() else {
        panic!("not one condition: {:?}", import.conditions);
    };
    assert_eq!(condition.kind, "Ready");
    let text = format!("{} {}", condition.status(), condition.reason);
    (text, import.spec.ips, import.spec.families)
}

const V4_FIRST: [Family; 2] = [Family::V4, Family::V6];

fn v4() -> IpAddr {
    [10, 112, 0, 1].into()
}

fn v6() -> IpAddr {
    "fd00:112::1".parse().expect("an address")
}

#[test]
fn an_import_without_addresses_yet_is_pending() {
    let here = here(ImportKind::ClusterSetIp, &V4_FIRST, &V4_FIRST);
    let none = ("False Pending".to_owned(), vec![], V4_FIRST.to_vec());
    assert_eq!(ready(&here, &[]), none);
}

#[test]
fn an_import_with_an_address_is_ready_in_the_families_of_its_addresses() {
    let here = here(ImportKind::ClusterSetIp, &V4_FIRST, &V4_FIRST);
    let one = ("True Ready".to_owned(), vec![v6()], vec![Family::V6]);
    assert_eq!(ready(&here, &[v6()]), one);
    let both = ("True Ready".to_owned(), vec![v4(), v6()], V4_FIRST.to_vec());
    assert_eq!(ready(&here, &[v6(), v4()]), both);
}

#[test]
fn an_address_of_a_family_that_the_cluster_lacks_is_not_written() {
    let here = here(ImportKind::ClusterSetIp, &V4_FIRST, &[Family::V4]);
    let none = ("False Pending".to_owned(), vec![], vec![Family::V4]);
    assert_eq!(ready(&here, &[v6()]), none);
}

#[test]
fn an_import_is_not_supported_where_the_cluster_has_no_range_of_its_families() {
    let here = here(ImportKind::ClusterSetIp, &[Family::V6], &[]);
    let refused = (
        "False IPFamilyNotSupported".to_owned(),
        vec![],
        vec![Family::V6],
    );
    assert_eq!(ready(&here, &[]), refused);
    assert_eq!(ready(&here, &[v4()]), refused);
}

#[test]
fn a_headless_import_is_ready_without_addresses() {
    let here = here(ImportKind::Headless, &V4_FIRST, &V4_FIRST);
    let headless = ("True Ready".to_owned(), vec![], V4_FIRST.to_vec());
    assert_eq!(ready(&here, &[]), headless);
}
