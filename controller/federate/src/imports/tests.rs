// SPDX-License-Identifier: Apache-2.0

mod traffic;
mod visibility;

use portolan_model::Protocol;
use portolan_policy::File;

use super::*;
use crate::merge::{Affinity, Port, condition};

/// A set and policies, as files spell them.
struct Policies {
    set: ClusterSet,
    objects: Objects,
}

/// Policies from pairs of kind and spec, named `p0`, `p1` and so on.
fn policies(set: &str, specs: &[(&str, &str)]) -> Policies {
    let set = [("ClusterSet", set)];
    let documents = set.iter().chain(specs).enumerate().map(|(index, (kind, spec))| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: p{index}}}\nspec: {spec}\n---\n"
        )
    });
    let text: String = documents.collect();
    let reading = portolan_policy::read(&[File {
        name: "p.yaml",
        text: &text,
    }]);
    let errors = reading.problems.iter();
    let errors: Vec<_> = errors
        .filter(|problem| !problem.fault.error.reason().is_warning())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    Policies {
        set: reading.objects.set.clone().unwrap(),
        objects: reading.objects,
    }
}

impl Policies {
    fn world(&self, members: impl IntoIterator<Item = (&'static str, Member)>) -> World<'_> {
        let members = members.into_iter();
        World {
            set: &self.set,
            objects: &self.objects,
            members: members
                .map(|(name, member)| (name.into(), member))
                .collect(),
        }
    }
}

/// A cluster `id-NAME` with the namespaces `shop` and `other`.
fn member(name: &str, exports: &[(&str, Candidate)]) -> (&'static str, Member) {
    let name = ["a", "b", "c"]
        .into_iter()
        .find(|known| *known == name)
        .unwrap();
    let id: Arc<str> = format!("id-{name}").into();
    let exports = exports.iter().map(|(service, candidate)| {
        let mut candidate = candidate.clone();
        candidate.export.cluster = Arc::clone(&id);
        (import_name(service), candidate)
    });
    let member = Member {
        exports: exports.collect(),
        namespaces: ["shop", "other"].map(Arc::from).into(),
        ranges: Families::from_iter([Family::V4]),
        max_exports: 5000,
        max_endpoints: 50_000,
        labels: Labels::from([("name".to_owned(), name.to_owned())]),
        id,
        ..Member::default()
    };
    (name, member)
}

fn import_name(text: &str) -> ImportName {
    let (namespace, name) = text.split_once('/').unwrap();
    ImportName {
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// A Service with a ServiceExport.
fn service() -> Candidate {
    Candidate {
        requested: true,
        service: Some(ServiceType::ClusterIp),
        labels: Labels::new(),
        weight: None,
        ready_endpoints: 1,
        export: Export {
            cluster: "".into(),
            created: Some(1),
            kind: ImportKind::ClusterSetIp,
            ports: vec![Port {
                name: "http".into(),
                protocol: Protocol::Tcp,
                number: 80,
                app_protocol: None,
            }],
            affinity: Affinity::None,
            internal_local: false,
            traffic_distribution: None,
            cluster_selectors: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            families: vec![Family::V4],
        },
    }
}

fn created(seconds: i64) -> Candidate {
    let mut candidate = service();
    candidate.export.created = Some(seconds);
    candidate
}

/// All imports as `CLUSTER NAMESPACE/NAME: SOURCES`, in order.
fn listed(federation: &Federation) -> Vec<String> {
    let each = federation.imports.iter().flat_map(|(cluster, imports)| {
        imports.iter().map(move |(name, here)| {
            let sources: Vec<String> = here
                .sources
                .iter()
                .map(|(exporting, source)| format!("{exporting} {source}"))
                .collect();
            format!("{cluster} {name}: {}", sources.join(", "))
        })
    });
    let mut each: Vec<_> = each.collect();
    each.sort();
    each
}

#[test]
fn an_export_is_imported_wherever_its_namespace_exists() {
    let policies = policies("{}", &[]);
    let mut c = member("c", &[]);
    c.1.namespaces.clear();
    let b = member("b", &[("shop/web", created(2))]);
    let world = policies.world([member("a", &[("shop/web", created(1))]), b, c]);
    let found = imports(&world);
    assert_eq!(
        listed(&found),
        [
            "a shop/web: a shop/web, b shop/web",
            "b shop/web: a shop/web, b shop/web"
        ]
    );
    assert_eq!(
        &*found.imports["b"][&import_name("shop/web")].import.winner,
        "id-a"
    );
    let status = &found.exports["b"][&import_name("shop/web")];
    assert_eq!(
        (status.valid, status.ready),
        (Valid::Valid, Ready::Exported)
    );
    assert_eq!(*status.importers, ["a", "b"].map(Arc::from).into());
    // The last export gone, the import is gone.
    let world = policies.world([member("a", &[]), member("b", &[])]);
    assert!(listed(&imports(&world)).is_empty());
}

#[test]
fn the_winner_of_an_import_stays() {
    let policies = policies("{}", &[]);
    let mut a = member("a", &[("shop/web", created(1))]);
    let winner = (import_name("shop/web"), Arc::from("id-b"));
    a.1.winners.extend([winner]);
    let world = policies.world([a, member("b", &[("shop/web", created(2))])]);
    let found = imports(&world);
    let winner = |cluster: &str| {
        found.imports[cluster][&import_name("shop/web")]
            .import
            .winner
            .to_string()
    };
    assert_eq!(
        (winner("a"), winner("b")),
        ("id-b".to_owned(), "id-a".to_owned())
    );
}

#[test]
fn conflicts_are_on_all_exports() {
    let policies = policies("{}", &[]);
    let mut other = created(2);
    other.export.internal_local = true;
    let world = policies.world([
        member("a", &[("shop/web", created(1))]),
        member("b", &[("shop/web", other)]),
        member("c", &[("shop/web", created(3))]),
    ]);
    let found = imports(&world);
    for cluster in ["a", "b", "c"] {
        let status = &found.exports[cluster][&import_name("shop/web")];
        assert_eq!(
            condition(&status.conflicts).0,
            "InternalTrafficPolicyConflict"
        );
    }
}

#[test]
fn an_export_without_a_family_that_an_importing_cluster_has_is_told_so() {
    let policies = policies("{}", &[]);
    let exported = |seconds, families: &[Family]| {
        let mut candidate = created(seconds);
        candidate.export.families = families.to_vec();
        candidate
    };
    let both = [Family::V4, Family::V6];
    let world = |of_c: &[Family]| {
        let mut a = member("a", &[("shop/web", exported(1, &both))]);
        let mut b = member("b", &[("shop/web", exported(2, &[Family::V6]))]);
        let mut c = member("c", &[]);
        a.1.ranges = Families::from_iter(both);
        b.1.ranges = Families::from_iter(both);
        c.1.ranges = of_c.iter().copied().collect();
        policies.world([a, b, c])
    };
    let web = import_name("shop/web");
    let told = |of_c: &[Family]| {
        let world = world(of_c);
        let found = imports(&world);
        let conflict = |name: &str| condition(&found.exports[name][&web].conflicts).0;
        let reason = |(importing, exporting): (&str, &str)| {
            let (importing, exporting) = (Arc::from(importing), Arc::from(exporting));
            let explained = found.explain(&world, &importing, &exporting, &web, None);
            explained.invisible
        };
        let reasons = [("c", "a"), ("c", "b"), ("a", "b")].map(reason);
        (["a", "b"].map(conflict), reasons)
    };
    let (none, conflict) = ("NoConflicts".to_owned(), "IPFamilyConflict".to_owned());
    let nobody = [none.clone(), none];
    let reasons = [None, Some(Invisible::OtherFamilies), None];
    let expected = ([conflict.clone(), conflict], reasons);
    assert_eq!(told(&[Family::V4]), expected);
    let expected = (nobody.clone(), [None, None, None]);
    assert_eq!(told(&both), expected);
    // Without a range nobody is reached, which the import itself says.
    let reason = Some(Invisible::NoFamily);
    let expected = (nobody, [reason.clone(), reason, None]);
    assert_eq!(told(&[]), expected);
}

#[test]
fn a_namespace_may_be_another_here_and_is_merged_with_its_own() {
    let policies = policies(
        "{}",
        &[(
            "ImportPolicy",
            "{clusters: {names: [a]}, from: {names: [b]}, services: {namespaces: [other]}, namespaceAs: shop, nodes: {names: [n1]}}",
        )],
    );
    let world = policies.world([
        member("a", &[("shop/web", created(9))]),
        member(
            "b",
            &[
                ("other/web", created(1)),
                ("other/db", created(1)),
                ("shop/db", created(9)),
            ],
        ),
    ]);
    let found = imports(&world);
    assert_eq!(
        listed(&found),
        [
            "a shop/db: b shop/db",
            "a shop/web: a shop/web, b other/web",
            "b other/db: b other/db",
            "b other/web: b other/web",
            "b shop/db: b shop/db",
            "b shop/web: a shop/web"
        ]
    );
    let (a, b) = (Arc::from("a"), Arc::from("b"));
    let explained = found.explain(&world, &a, &b, &import_name("other/db"), None);
    assert_eq!(explained.name, Some(import_name("shop/db")));
    assert_eq!(
        explained.invisible,
        Some(Invisible::NameTaken(import_name("shop/db")))
    );
    // The nodes are those of the winner's policy.
    let web = &found.imports["a"][&import_name("shop/web")];
    assert_eq!(&*web.import.winner, "id-b");
    assert_eq!(web.nodes.as_deref(), Some("p1"));
    let world = policies.world([
        member("a", &[("shop/web", created(1))]),
        member("b", &[("other/web", created(9))]),
    ]);
    assert_eq!(
        imports(&world).imports["a"][&import_name("shop/web")].nodes,
        None
    );
}

#[test]
fn import_policies_see_exported_labels_alone() {
    let policy =
        "{from: {names: [b]}, services: {selector: {matchLabels: {tier: secret}}}, action: Deny}";
    let policies = policies("{}", &[("ImportPolicy", policy)]);
    let secret = Labels::from([("tier".to_owned(), "secret".to_owned())]);
    let mut exported = service();
    exported.export.labels.clone_from(&secret);
    let own = Candidate {
        labels: secret,
        ..service()
    };
    let b = member("b", &[("shop/own", own), ("shop/exported", exported)]);
    let world = policies.world([member("a", &[]), b]);
    let found = imports(&world);
    let names: Vec<String> = found.imports["a"].keys().map(ToString::to_string).collect();
    assert_eq!(names, ["shop/own"]);
}

#[test]
fn the_newest_exports_beyond_the_quota_are_refused() {
    let policies = policies(
        "{}",
        &[(
            "ExportPolicy",
            "{services: {names: [denied]}, action: Deny}",
        )],
    );
    let mut undated = service();
    undated.export.created = None;
    let exports = [
        ("shop/x", created(3)),
        ("shop/old", created(1)),
        ("shop/denied", created(0)),
        ("shop/new", created(4)),
        ("shop/a", created(3)),
        (
            "shop/gone",
            Candidate {
                service: None,
                ..created(0)
            },
        ),
        ("shop/undated", undated),
    ];
    let mut a = member("a", &exports);
    a.1.max_exports = 3;
    let world = policies.world([a]);
    let found = imports(&world);
    let statuses = found.exports["a"].iter();
    let ready: BTreeMap<String, Ready> = statuses
        .map(|(name, status)| (name.to_string(), status.ready))
        .collect();
    let expected = [
        ("shop/a", Ready::Exported),
        ("shop/denied", Ready::DeniedByPolicy),
        ("shop/gone", Ready::Failed),
        ("shop/new", Ready::QuotaExceeded(Quota::Exports(3))),
        ("shop/old", Ready::Exported),
        ("shop/undated", Ready::QuotaExceeded(Quota::Exports(3))),
        ("shop/x", Ready::Exported),
    ];
    assert_eq!(
        ready,
        expected
            .map(|(name, ready)| (name.to_owned(), ready))
            .into()
    );
    assert_eq!(found.imports["a"].len(), 3);
}

#[test]
fn the_newest_exports_beyond_the_endpoints_are_refused() {
    let with = |age, endpoints| Candidate {
        ready_endpoints: endpoints,
        ..created(age)
    };
    let policies = policies("{}", &[]);
    let states = |most_exports, most_endpoints| {
        let exports = [
            ("shop/first", with(1, 3)),
            ("shop/second", with(2, 4)),
            ("shop/third", with(3, 5)),
            ("shop/fourth", with(4, 0)),
        ];
        let mut a = member("a", &exports);
        a.1.max_exports = most_exports;
        a.1.max_endpoints = most_endpoints;
        let found = imports(&policies.world([a]));
        assert!(
            found.imports["a"]
                .keys()
                .all(|name| found.exports["a"][name].ready == Ready::Exported)
        );
        ["shop/first", "shop/second", "shop/third", "shop/fourth"]
            .map(|name| found.exports["a"][&import_name(name)].ready)
    };
    let exported = Ready::Exported;
    let refused = |most| Ready::QuotaExceeded(Quota::Endpoints(most));
    assert_eq!(states(10, 12), [exported; 4]);
    // The fourth one has none, and the third one has waited for longer.
    let two = [exported, exported, refused(11), refused(11)];
    assert_eq!(states(10, 11), two);
    assert_eq!(states(10, 7), [exported, exported, refused(7), refused(7)]);
    assert_eq!(
        states(10, 6),
        [exported, refused(6), refused(6), refused(6)]
    );
    let many = Ready::QuotaExceeded(Quota::Exports(2));
    assert_eq!(states(2, 6), [exported, refused(6), many, many]);
}

#[test]
fn policies_may_export_without_an_export() {
    let unasked = || Candidate {
        requested: false,
        ..service()
    };
    let both = |policies: &Policies| {
        let a = member("a", &[("shop/web", unasked()), ("other/web", unasked())]);
        listed(&imports(&policies.world([a])))
    };
    assert!(both(&policies("{}", &[])).is_empty());
    assert_eq!(
        both(&policies("{exports: {automatic: true}}", &[])).len(),
        2
    );
    let policy = (
        "ExportPolicy",
        "{services: {namespaces: [shop]}, automatic: true}",
    );
    assert_eq!(both(&policies("{}", &[policy])), ["a shop/web: a shop/web"]);
}
