// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::Labels;
use crate::spec::{
    ClusterSetSpec, ExportPolicySpec, ImportPolicySpec, SelectorSpec, ServicesSpec,
    TrafficPolicySpec,
};

fn meta(name: &str, created: Option<i64>) -> Meta {
    Meta {
        name: name.to_owned(),
        created,
        labels: Labels::new(),
    }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn labels(labels: &[(&str, &str)]) -> Labels {
    let labels = labels.iter();
    labels
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn named(names: &[&str]) -> SelectorSpec {
    SelectorSpec {
        names: texts(names),
        ..SelectorSpec::default()
    }
}

fn labelled(key: &str, value: &str) -> SelectorSpec {
    SelectorSpec {
        match_labels: labels(&[(key, value)]),
        ..SelectorSpec::default()
    }
}

fn set(exports: Action, automatic: bool, imports: Action) -> ClusterSet {
    let mut spec = ClusterSetSpec::default();
    spec.exports.default = exports;
    spec.exports.automatic = automatic;
    spec.imports.default = imports;
    ClusterSet::new(meta("prod", None), &spec).unwrap()
}

fn export(name: &str, created: i64, priority: i32, action: Action) -> ExportPolicy {
    let spec = ExportPolicySpec {
        priority,
        action,
        automatic: true,
        ..ExportPolicySpec::default()
    };
    ExportPolicy::new(meta(name, Some(created)), &spec).unwrap()
}

const EU: &str = "eu-1";

fn eu(labels: &Labels) -> ClusterFacts<'_> {
    ClusterFacts { name: EU, labels }
}

fn exported(policies: &[ExportPolicy]) -> (Action, bool, String) {
    let none = Labels::new();
    let set = set(Action::Deny, true, Action::Allow);
    let service = ServiceFacts {
        namespace: "shop",
        name: "web",
        labels: &none,
    };
    let decision = export_decision(&set, policies, &eu(&none), &service);
    let reason = decision.because.to_string();
    (decision.action, decision.automatic, reason)
}

#[test]
fn of_export_policies_the_highest_priority_applies_and_of_equal_ones_one_that_denies() {
    use Action::{Allow, Deny};
    type Policies<'a> = &'a [(&'a str, i64, i32, Action)];
    let cases: [(Policies<'_>, Action, bool, &str); 6] = [
        (
            &[],
            Deny,
            false,
            "default of the ClusterSet: no policy selects it",
        ),
        (
            &[("a", 1, 0, Allow)],
            Allow,
            true,
            "a: no other policy selects it",
        ),
        (
            &[("a", 1, -1, Deny), ("b", 2, 5, Allow), ("c", 0, 3, Deny)],
            Allow,
            true,
            "b: has a higher priority than c",
        ),
        (
            &[("a", 1, 5, Allow), ("b", 2, 5, Deny)],
            Deny,
            false,
            "b: denies, at the same priority as a",
        ),
        (
            &[("a", 2, 5, Allow), ("b", 1, 5, Allow)],
            Allow,
            true,
            "b: is older than a",
        ),
        (
            &[("b", 1, 5, Allow), ("a", 1, 5, Allow)],
            Allow,
            true,
            "a: comes by name before b",
        ),
    ];
    for (policies, action, automatic, reason) in cases {
        let mut policies: Vec<ExportPolicy> = policies
            .iter()
            .map(|(name, created, priority, action)| export(name, *created, *priority, *action))
            .collect();
        for _ in 0..2 {
            assert_eq!(exported(&policies), (action, automatic, reason.to_owned()));
            policies.reverse();
        }
    }
}

#[test]
fn an_unknown_age_comes_last() {
    let mut unknown = export("a", 0, 5, Action::Allow);
    unknown.meta.created = None;
    let (_, _, reason) = exported(&[unknown, export("b", 9, 5, Action::Allow)]);
    assert_eq!(reason, "b: is older than a");
}

#[test]
fn an_export_policy_says_who_may_import() {
    let none = Labels::new();
    let spec = ExportPolicySpec {
        clusters: labelled("tier", "prod"),
        services: ServicesSpec {
            namespaces: texts(&["shop*"]),
            ..ServicesSpec::default()
        },
        to: named(&["us-*"]),
        ..ExportPolicySpec::default()
    };
    let policies = [ExportPolicy::new(meta("p", None), &spec).unwrap()];
    let set = set(Action::Deny, false, Action::Allow);
    let prod = labels(&[("tier", "prod")]);
    let decide = |namespace, labels| {
        let service = ServiceFacts {
            namespace,
            name: "web",
            labels: &none,
        };
        export_decision(&set, &policies, &eu(labels), &service)
    };
    let decision = decide("shop-us", &prod);
    let reaches = |name| {
        decision.reaches(&ClusterFacts {
            name,
            labels: &none,
        })
    };
    assert_eq!((reaches("us-1"), reaches("ap-1")), (true, false));
    assert_eq!(decide("other", &prod).because, Because::Default);
    assert_eq!(decide("shop", &none).because, Because::Default);
}

#[test]
fn a_cluster_imports_what_it_exports_whatever_policies_say() {
    let none = Labels::new();
    let spec = ImportPolicySpec {
        from: named(&[EU, "us-1"]),
        action: Action::Deny,
        namespace_as: Some("other".into()),
        ..ImportPolicySpec::default()
    };
    let policies = [ImportPolicy::new(meta("deny", None), &spec).unwrap()];
    let set = set(Action::Allow, false, Action::Allow);
    let service = ServiceFacts {
        namespace: "shop",
        name: "web",
        labels: &none,
    };
    let decide = |exporting| {
        let exporting = ClusterFacts {
            name: exporting,
            labels: &none,
        };
        let decision = import_decision(&set, &policies, &eu(&none), &exporting, &service);
        (decision.action, decision.because)
    };
    assert_eq!(decide(EU), (Action::Allow, Because::Own));
    assert_eq!(decide("us-1"), (Action::Deny, Because::Only("deny".into())));
    assert_eq!(decide("us-2"), (Action::Allow, Because::Default));
}

/// A policy of traffic: name, age, priority, Services, importing clusters.
fn traffic(
    name: &str,
    created: i64,
    priority: i32,
    services: ServicesSpec,
    clusters: SelectorSpec,
) -> TrafficPolicy {
    let spec = TrafficPolicySpec {
        priority,
        services,
        clusters,
        ..TrafficPolicySpec::default()
    };
    TrafficPolicy::new(meta(name, Some(created)), &spec).unwrap()
}

#[test]
fn one_traffic_policy_applies_the_closest_first() {
    let any = ServicesSpec::default;
    let by_name = || ServicesSpec {
        names: texts(&["web"]),
        ..any()
    };
    let by_label = || ServicesSpec {
        selector: labelled("app", "web"),
        ..any()
    };
    let by_namespace = || ServicesSpec {
        namespaces: texts(&["shop"]),
        names: texts(&["*"]),
        ..any()
    };
    let all = SelectorSpec::default;
    // From the first to the last, each with what decides between it and the next one.
    let policies = [
        (
            traffic("i", 9, 0, by_name(), named(&["eu-*"])),
            "names the importing cluster more closely than",
        ),
        (
            traffic("h", 8, 0, by_name(), labelled("tier", "prod")),
            "names the importing cluster more closely than",
        ),
        (
            traffic("g", 7, 0, by_name(), all()),
            "names the Service more closely than",
        ),
        (
            traffic("f", 6, 0, by_label(), all()),
            "names the Service more closely than",
        ),
        (
            traffic("e", 5, 0, by_namespace(), all()),
            "names the Service more closely than",
        ),
        (
            traffic("d", 4, 7, any(), all()),
            "has a higher priority than",
        ),
        (traffic("b", 2, 1, any(), all()), "is older than"),
        (traffic("a", 3, 1, any(), all()), "comes by name before"),
        (traffic("c", 3, 1, any(), all()), ""),
    ];
    let prod = labels(&[("tier", "prod")]);
    let web = labels(&[("app", "web")]);
    let service = ServiceFacts {
        namespace: "shop",
        name: "web",
        labels: &web,
    };
    for start in 0..policies.len() {
        let (expected, rule) = &policies[start];
        let rest = policies[start..].iter().rev().map(|(policy, _)| policy);
        let decision = traffic_decision(rest, &eu(&prod), &service).unwrap();
        assert_eq!(decision.policy, expected);
        let reason = decision.because.to_string();
        let expected_reason = match policies.get(start + 1) {
            Some((other, _)) => format!("{}: {rule} {}", expected.meta.name, other.meta.name),
            None => "c: no other policy selects it".to_owned(),
        };
        assert_eq!(reason, expected_reason);
        assert_eq!(decision.shadowed.len(), policies.len() - start - 1);
    }
    let other = ServiceFacts {
        namespace: "other",
        name: "db",
        ..service
    };
    let decision = traffic_decision(
        policies.iter().map(|(policy, _)| policy),
        &eu(&prod),
        &other,
    );
    assert_eq!(decision.unwrap().policy.meta.name, "f");
    assert_eq!(traffic_decision([&policies[0].0], &eu(&prod), &other), None);
}

fn tiers_of(yaml: &str, importing: &str) -> Vec<ResolvedTier> {
    let text = format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: x}}\nspec: {{tiers: {yaml}}}\n"
    );
    let reading = crate::read(&[crate::File {
        name: "p.yaml",
        text: &text,
    }]);
    let errors: Vec<_> = reading
        .problems
        .iter()
        .filter(|problem| !problem.fault.error.reason().is_warning())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    let (eu, us, none) = (
        labels(&[("region", "eu")]),
        labels(&[("region", "us")]),
        Labels::new(),
    );
    let clusters: Vec<ClusterFacts<'_>> =
        [("ap-1", &none), ("eu-1", &eu), ("eu-2", &eu), ("us-1", &us)]
            .map(|(name, labels)| ClusterFacts { name, labels })
            .into();
    let own = clusters.iter().find(|cluster| cluster.name == importing);
    resolve_tiers(&reading.objects.traffic["x"].tiers, own.unwrap(), &clusters)
}

#[test]
fn a_cluster_is_in_the_first_tier_that_names_it() {
    let alike = |names: &[&str]| ResolvedTier::Alike(texts(names));
    let weighted = |weights: &[(&str, u16)]| {
        let weights = weights.iter();
        ResolvedTier::Weighted(
            weights
                .map(|(name, weight)| ((*name).to_owned(), *weight))
                .collect(),
        )
    };
    let local_first = "[{clusters: [{local: true}]}, {sameAs: [region]}, {rest: true}]";
    let cases = [
        ("[]", "eu-1", vec![alike(&["ap-1", "eu-1", "eu-2", "us-1"])]),
        (
            local_first,
            "eu-1",
            vec![alike(&["eu-1"]), alike(&["eu-2"]), alike(&["ap-1", "us-1"])],
        ),
        // It has no region, so no other cluster has the same one.
        (
            local_first,
            "ap-1",
            vec![
                alike(&["ap-1"]),
                alike(&[]),
                alike(&["eu-1", "eu-2", "us-1"]),
            ],
        ),
        (
            "[{sameAs: [region]}, {rest: true}]",
            "ap-1",
            vec![alike(&[]), alike(&["ap-1", "eu-1", "eu-2", "us-1"])],
        ),
        (
            "[{clusters: [{names: [us-1]}]}]",
            "eu-1",
            vec![alike(&["us-1"])],
        ),
        (
            "[{clusters: [{names: [eu-2], weight: 0}, {names: [eu-*], weight: 70}]}, {rest: true}]",
            "us-1",
            vec![
                weighted(&[("eu-2", 0), ("eu-1", 70)]),
                alike(&["ap-1", "us-1"]),
            ],
        ),
    ];
    for (yaml, importing, expected) in cases {
        assert_eq!(tiers_of(yaml, importing), expected, "{yaml} in {importing}");
    }
}
