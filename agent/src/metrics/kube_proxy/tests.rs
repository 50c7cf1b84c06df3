// SPDX-License-Identifier: Apache-2.0

use super::*;

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

fn assert_lines(registry: &Registry, lines: &[&str]) {
    let text = text(registry);
    for line in lines {
        assert!(text.lines().any(|have| have == *line), "{line}\n{text}");
    }
}

fn registered() -> (Registry, KubeProxyMetrics) {
    let mut registry = Registry::default();
    let metrics = KubeProxyMetrics::register(&mut registry);
    (registry, metrics)
}

#[test]
fn reconciliations_are_observed_as_full_or_partial() {
    let (registry, metrics) = registered();
    let written = BTreeMap::from([("nat".to_owned(), 7)]);
    let full = Outcome {
        is_full: true,
        rule_failures: 1,
        rules_written: written.clone(),
        ..Outcome::default()
    };
    let rules = BTreeMap::from([("nat".to_owned(), 9), ("filter".to_owned(), 3)]);
    metrics.observe(&full, Some(&rules));
    let prefix = "kubeproxy_sync_proxy_rules";
    assert_lines(
        &registry,
        &[
            &format!("{prefix}_iptables_last{{table=\"nat\"}} 7"),
            &format!("{prefix}_iptables_last{{table=\"filter\"}} 0"),
            &format!("{prefix}_iptables_total{{table=\"nat\"}} 9"),
            &format!("{prefix}_iptables_restore_failures_total 1"),
        ],
    );
    metrics.observe(&Outcome::default(), Some(&rules));
    assert_lines(
        &registry,
        &[
            "kubeproxy_sync_proxy_rules_duration_seconds_count 2",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count 1",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds_count 1",
            &format!("{prefix}_iptables_last{{table=\"nat\"}} 0"),
        ],
    );
    assert!(text(&registry).contains("kubeproxy_sync_proxy_rules_last_timestamp_seconds "));
}

#[test]
fn rules_of_a_dataplane_that_has_gone_are_not_counted() {
    let (registry, metrics) = registered();
    let full = Outcome {
        is_full: true,
        ..Outcome::default()
    };
    let rules = BTreeMap::from([("nat".to_owned(), 9), ("filter".to_owned(), 3)]);
    metrics.observe(&full, Some(&rules));
    // A reconciliation of changed records leaves them.
    metrics.observe(&Outcome::default(), None);
    let prefix = "kubeproxy_sync_proxy_rules_iptables";
    let counted = || {
        let text = text(&registry);
        let is_one = |line: &&str| line.starts_with(prefix) && line.contains("table=");
        text.lines().filter(is_one).count()
    };
    assert_eq!(counted(), 4);
    let rules = BTreeMap::from([("filter".to_owned(), 3)]);
    metrics.observe(&full, Some(&rules));
    assert_eq!(counted(), 2);
    // An engine of nftables has no rules of iptables.
    metrics.observe(&full, Some(&BTreeMap::new()));
    assert_eq!(counted(), 0);
}

#[test]
fn changes_are_counted_and_pending_until_programmed() {
    let (registry, metrics) = registered();
    let changes = |services, endpoints| TableChanges {
        services,
        endpoints,
    };
    metrics.observe_changes(changes(2, 3), changes(2, 3));
    metrics.observe_changes(changes(1, 0), TableChanges::default());
    let prefix = "kubeproxy_sync_proxy_rules";
    assert_lines(
        &registry,
        &[
            &format!("{prefix}_service_changes_total 3"),
            &format!("{prefix}_service_changes_pending 0"),
            &format!("{prefix}_endpoint_changes_total 3"),
            &format!("{prefix}_endpoint_changes_pending 0"),
        ],
    );
}

#[test]
fn service_ports_without_local_endpoints_have_their_policy_as_label() {
    let (registry, metrics) = registered();
    let (internal, external) = (1, 2);
    metrics.observe_no_local_endpoints(NoLocalEndpoints { internal, external });
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    assert_lines(
        &registry,
        &[
            &format!("{name}{{traffic_policy=\"external\"}} 2"),
            &format!("{name}{{traffic_policy=\"internal\"}} 1"),
        ],
    );
}

#[test]
fn deletions_of_flows_are_observed() {
    let (registry, metrics) = registered();
    metrics.observe_flows(Duration::from_millis(3), 5);
    assert_lines(
        &registry,
        &[
            "kubeproxy_conntrack_reconciler_deleted_entries_total 5",
            "kubeproxy_conntrack_reconciler_sync_duration_seconds_count 1",
        ],
    );
}
