// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use super::*;

#[test]
fn an_import_has_a_line_for_each_cluster() {
    let cluster = |name: &str, tier: u32, share: Option<u32>, reason: &str| {
        json!({"tier": tier, "load": 14, "cluster": name, "step": 20, "ready": 5, "expected": 10,
                "health": 14, "sharePermille": share, "weights": [[4, 10], [1, 9]], "reason": reason})
    };
    let eu = cluster("eu-1", 1, Some(700), "below the minimum: 6/20 go on");
    let port = json!({"port": "http 80/TCP", "family": "IPv4", "panic": false, "errorPermille": 0,
            "scheduler": "wrr", "clusters": [eu]});
    let import = json!({"cluster": "eu-1", "name": "shop/web", "exists": true, "kind": "ClusterSetIP",
            "vips": ["10.112.3.7"], "policy": "TrafficPolicy web: no other policy selects it, minHealthy 70% Proportional",
            "ports": [port], "affinityEnds": ["ap-2"], "hidden": [["ap-1", "not imported: denied by ImportPolicy deny-ap"]]});
    let answer = json!({"import": import, "phases": {"eu-1": "Ready"}, "revision": 812,
            "connected": 2, "programmed": 2});
    assert_eq!(
        show(answer).unwrap().text,
        "shop/web@clusterset in eu-1: VIP 10.112.3.7; TrafficPolicy web: no other policy selects it, \
             minHealthy 70% Proportional\n\
             port http 80/TCP IPv4, scheduler wrr\n\
             TIER  LOAD  CLUSTER  STATE  READY  HEALTH  SHARE  WEIGHTS   REASON\n\
             1     14    eu-1     Ready  5/10   14/20   70.0%  4×10+1×9  below the minimum: 6/20 go on\n\
             affinity reaches the gateways of ap-2: connections of a client are spread behind them\n\
             ap-1 (-): not imported: denied by ImportPolicy deny-ap\n\
             programmed on 2 of 2 nodes, revision 812\n"
    );
}

#[test]
fn an_import_names_the_policies_that_do_not_apply() {
    let import = json!({"cluster": "eu-1", "name": "shop/web", "exists": true, "kind": "ClusterSetIP",
            "vips": ["10.112.3.7"], "policy": "TrafficPolicy web", "shadowed": ["late", "local"], "ports": [],
            "hidden": []});
    let answer =
        json!({"import": import, "phases": {}, "revision": 1, "connected": 0, "programmed": 0});
    assert_eq!(
        show(answer).unwrap().text,
        "shop/web@clusterset in eu-1: VIP 10.112.3.7; TrafficPolicy web\n\
             not applied, since another one comes first: TrafficPolicy late, local\n\
             programmed on 0 of 0 nodes, revision 1\n"
    );
}

#[test]
fn a_plan_has_a_line_for_each_import_that_changes() {
    let shares =
        |permille: Value| json!({"policy": "", "permille": permille, "clusters": ["eu-1", "us-1"]});
    let changed = json!({"cluster": "eu-1", "name": "shop/web", "before": shares(json!({"eu-1": 1000})),
            "after": shares(json!({"eu-1": 700, "us-1": 300}))});
    let added =
        json!({"cluster": "us-1", "name": "shop/api", "before": null, "after": shares(json!({}))});
    assert_eq!(
        show_plan(json!({"imports": [changed, added]}))
            .unwrap()
            .text,
        "CLUSTER  IMPORT    NOW          THEN\n\
             eu-1     shop/web  eu-1 100.0%  eu-1 70.0%, us-1 30.0%\n\
             us-1     shop/api  none         of eu-1, us-1\n"
    );
    let mut by_gateway = shares(json!({"eu-1": 1000}));
    by_gateway["gateways"] = json!({"eu-1": ["192.168.1.1:20001"]});
    let moved = json!({"cluster": "us-1", "name": "shop/api", "before": null, "after": by_gateway});
    let text = show_plan(json!({"imports": [moved]})).unwrap().text;
    assert!(text.ends_with("none  eu-1 100.0% by 1 gateway\n"), "{text}");
    let refused = json!({"cluster": "us-1", "name": "shop/api", "before": shares(json!({"eu-1": 1000})),
            "after": null, "refused": {"eu-1": "not exported: spec.quota.endpoints: 3"}});
    let text = show_plan(json!({"imports": [refused]})).unwrap().text;
    assert!(
        text.ends_with("none; eu-1: not exported: spec.quota.endpoints: 3\n"),
        "{text}"
    );
    let nothing = show_plan(json!({"imports": []})).unwrap();
    assert_eq!(nothing.text, "no import would change\n");
}

#[test]
fn an_export_has_a_line_for_each_importer() {
    let answer = json!({"cluster": "us-1", "name": "shop/web", "valid": "Valid", "ready": "Exported",
            "conflicts": null, "problems": ["endpoints: AddressOutsideNetwork: 10.9.0.1"],
            "gateways": [{"port": "http TCP", "places": [["192.168.1.2:20011", "n2"]], "importers": ["eu-1"]}],
            "importers": [["eu-1", {"Ok": "shop/web"}], ["us-1", {"Err": "no"}]]});
    assert_eq!(
        show_export(answer).unwrap().text,
        "shop/web of us-1: Valid, Exported\n\
             problem: endpoints: AddressOutsideNetwork: 10.9.0.1\n\
             gateways for eu-1: port http TCP at 192.168.1.2:20011 (n2)\n\
             IMPORTER  IMPORTS  REASON\n\
             eu-1      yes      as shop/web\n\
             us-1      no       no\n"
    );
}
