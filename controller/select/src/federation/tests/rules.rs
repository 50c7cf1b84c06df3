// SPDX-License-Identifier: Apache-2.0

//! The rules of an import, one by one.

use portolan_catalog::{Kind, ObjectRef, Reason};
use portolan_model::{FrontendAddress, FrontendKind, Lists};

use super::*;

/// `web` in the clusters `a`, `b` and `c` with 3, 7 and 11 ready pods, exported by all.
pub(super) struct World {
    pipeline: Pipeline,
    tables: Tables,
}

impl World {
    pub(super) fn new(set: &str, more: &[(&str, &str)]) -> Self {
        Self::of(policies(set, more))
    }

    pub(super) fn of(policies: Objects) -> Self {
        let mut pipeline = Pipeline::default();
        pipeline.set_policies(policies);
        pipeline.set_states(full());
        for (cluster, pods) in CLUSTERS.into_iter().zip([3, 7, 11]) {
            pipeline.apply(namespace(cluster));
            pipeline.apply(put(Object::Service(service(cluster, "web"))));
            pipeline.apply(pods_of(cluster, 1..=pods));
            pipeline.apply(export(cluster, "web", facts()));
        }
        let mut world = Self {
            pipeline,
            tables: Tables::default(),
        };
        world.flush();
        world
    }

    /// Returns the number of records that changed.
    fn flush(&mut self) -> usize {
        allocate(&mut self.pipeline);
        let delta = self.pipeline.flush();
        let changed = delta.records.len();
        self.tables.fold(delta);
        changed
    }

    pub(super) fn apply(&mut self, changes: impl IntoIterator<Item = ObjectChange>) -> usize {
        let changes = changes.into_iter();
        changes.for_each(|change| self.pipeline.apply(change));
        self.flush()
    }

    pub(super) fn states(&mut self, change: &[(&str, ClusterState)]) -> usize {
        let mut states = full();
        for (name, state) in change {
            states.insert(Arc::from(*name), *state);
        }
        self.pipeline.set_states(states);
        self.flush()
    }

    pub(super) fn policies(&mut self, policies: Objects) {
        self.pipeline.set_policies(policies);
        self.flush();
    }

    pub(super) fn follow_names(&mut self) {
        self.pipeline.follow_names();
        self.pipeline.take_renamed();
    }

    /// The imports that were projected since the last call.
    pub(super) fn renamed(&mut self) -> BTreeSet<ObjectKey> {
        self.pipeline.take_renamed()
    }

    pub(super) fn counts(&mut self) -> Option<FederationCounts> {
        self.pipeline.changed_counts()
    }

    pub(super) fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Applies a change of a ServiceImport, and takes over what it records.
    pub(super) fn adopt(&mut self, cluster: &str, change: ObjectChange) {
        self.pipeline.apply(change);
        self.pipeline.adopt_imports(&cluster.into());
        self.flush();
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(super) fn problems(&self) -> BTreeMap<ObjectRef, Vec<FieldProblem>> {
        self.pipeline.problems()
    }

    /// The import of `web` in a cluster.
    pub(super) fn import(&self, cluster: &str) -> ShownImport {
        let name = import_name(&key(cluster, "web@clusterset")).unwrap();
        self.pipeline.show_import(&cluster.into(), &name).unwrap()
    }

    /// The export of `web` of a cluster.
    pub(super) fn export(&self, cluster: &str) -> ShownExport {
        let name = import_name(&key(cluster, "web@clusterset")).unwrap();
        self.pipeline.show_export(&cluster.into(), &name).unwrap()
    }

    pub(super) fn planned(&self, policies: Objects) -> Vec<PlannedImport> {
        self.pipeline.plan_policies(policies)
    }

    pub(super) fn record(&self, cluster: &str) -> &Record {
        self.tables.import(cluster, "web").unwrap()
    }

    /// The sums of the weights of each cluster's endpoints, in the import of a cluster.
    pub(super) fn weights(&self, cluster: &str) -> [u32; 3] {
        let mut sums = [0; 3];
        for destination in &self.record(cluster).destinations {
            let IpAddr::V4(ip) = destination.address.ip() else {
                panic!("{destination:?}")
            };
            // Gateways are counted with the cluster that they are of.
            let of = if ip.octets()[0] == 192 { 2 } else { 1 };
            sums[usize::from(ip.octets()[of]) - 1] += destination.weight;
        }
        sums
    }

    /// The overlays of a cluster's nodes, each with the name of its Service.
    pub(super) fn overlays(&self, cluster: &str) -> Vec<(&str, &Arc<NodeOverlay>)> {
        let lists = self.tables.lists.iter();
        let of_cluster = lists.filter(|((node, _), _)| *node.cluster == *cluster);
        of_cluster
            .map(|((_, key), of)| (&*key.service, of))
            .collect()
    }

    /// The addresses of the local lists of a cluster's nodes, in the import there.
    pub(super) fn local(&self, cluster: &str) -> Vec<IpAddr> {
        let key = &self.record(cluster).key;
        let lists = self.tables.lists.iter();
        let lists = lists.filter(|((_, of), _)| of == key);
        let local = lists.flat_map(|(_, lists)| &lists.local);
        local.map(|one| one.address.ip()).collect()
    }
}

fn pods_of(cluster: &str, numbers: impl IntoIterator<Item = u8>) -> ObjectChange {
    let endpoints = numbers.into_iter().map(|number| Endpoint {
        node: Some(format!("n{}", number % 2).into()),
        ..Endpoint::new(pod(cluster, number))
    });
    slice(cluster, "web", endpoints.collect())
}

fn deleted(kind: Kind, key: ObjectKey) -> ObjectChange {
    ObjectChange::Delete(ObjectRef { kind, key })
}

const SHARES: (&str, &str) = (
    "TrafficPolicy",
    "{tiers: [{clusters: [{names: [a], weight: 70}, {names: [b], weight: 20}, \
     {names: [c], weight: 10}]}]}",
);

pub(super) const DOWN: ClusterState = ClusterState {
    step: 0,
    drained: false,
    lost: true,
};

#[test]
fn shares_hold_whatever_the_numbers_of_pods() {
    let world = World::new("{}", &[SHARES]);
    for cluster in CLUSTERS {
        let [a, b, c] = world.weights(cluster);
        assert_eq!([2 * a, b], [7 * b, 2 * c], "{a} {b} {c}");
        let record = world.record(cluster);
        assert_eq!(record.scheduling.scheduler.as_deref(), Some("wrr"));
        let [v4, v6] = &record.frontends[..] else {
            panic!("{:?}", record.frontends)
        };
        assert_eq!(v4.kind, FrontendKind::ClusterIp);
        assert!(!v4.masquerade && v4.bind && v4.lists == Lists::Cluster);
        let is_v6 = matches!(v6.address, FrontendAddress::Vip(IpAddr::V6(_)));
        assert!(is_v6, "{v6:?}");
    }
    // Nobody's policy says anything: all pods alike, and the agent's scheduler.
    let world = World::new("{}", &[]);
    assert_eq!(world.weights("b"), [3, 7, 11]);
    assert_eq!(world.record("b").scheduling.scheduler, None);
}

#[test]
fn a_lost_cluster_is_withdrawn_and_the_last_one_kept() {
    let mut world = World::new("{}", &[SHARES]);
    world.states(&[("a", DOWN)]);
    let [a, b, c] = world.weights("a");
    assert_eq!((a, b), (0, 2 * c));
    world.states(&CLUSTERS.map(|name| (name, DOWN)));
    let [a, b, _] = world.weights("a");
    assert_eq!(2 * a, 7 * b, "all are lost: the last known endpoints serve");

    let mut world = World::new("{loss: {lastResort: Refuse}}", &[SHARES]);
    world.states(&CLUSTERS.map(|name| (name, DOWN)));
    let record = world.record("a");
    assert!(record.destinations.is_empty() && record.available.is_empty());
}

#[test]
fn a_change_touches_the_imports_of_its_service_only() {
    let mut world = World::new("{}", &[]);
    for cluster in CLUSTERS {
        let mut api = service(cluster, "api");
        api.cluster_ips = vec![[10, 96, 0, 2].into()];
        let exported = export(cluster, "api", facts());
        world.apply([put(Object::Service(api)), exported]);
    }
    // The Service itself, and the import of it in each cluster.
    assert_eq!(world.apply([pods_of("b", 1..=6)]), 4);
    // Local first: nobody else uses the endpoints of `b`.
    let local = "{tiers: [{clusters: [{local: true}]}, {rest: true}]}";
    let mut world = World::new("{}", &[("TrafficPolicy", local)]);
    assert_eq!(world.weights("b"), [0, 7, 0]);
    assert_eq!(world.apply([pods_of("b", 1..=6)]), 2);
    assert_eq!(world.weights("b"), [0, 6, 0]);
    // A state that is another in name only changes no record.
    let drained = ClusterState {
        drained: true,
        ..ClusterState::default()
    };
    assert_eq!(world.states(&[("b", drained)]), 0);
}

#[test]
fn forged_addresses_are_refused_and_named() {
    let mut world = World::new("{}", &[]);
    let forged = [pod("a", 1), [127, 0, 0, 1].into(), pod("b", 9)];
    world.apply([slice("b", "web", forged.map(Endpoint::new).into())]);
    assert_eq!(world.weights("a"), [3, 1, 11]);
    let problems = world.pipeline.problems();
    let (object, found) = problems.first_key_value().unwrap();
    assert_eq!(object.to_string(), "ServiceExport b/ns/web");
    assert_eq!(found[0].reason, Reason::AddressOutsideNetwork);
    let message = found[0].to_string();
    let expected = "10.1.0.1 (outside the cluster's networks)";
    assert!(message.contains(expected), "{message}");
    assert!(message.contains("127.0.0.1"), "{message}");
    world.apply([pods_of("b", 1..=7)]);
    assert!(world.pipeline.problems().is_empty());
}

#[test]
fn no_service_takes_the_address_of_an_import() {
    let mut world = World::new("{}", &[]);
    let vip = IpAddr::from([10, 112, 0, b'b']);
    let mut thief = service("a", "thief");
    thief.created = Some(0);
    thief.cluster_ips = vec![[10, 96, 0, 9].into()];
    thief.external_ips = vec![vip];
    assert_eq!(world.apply([put(Object::Service(thief))]), 1);
    let has_it = |record: &Record| {
        let mut frontends = record.frontends.iter();
        frontends.any(|frontend| frontend.address == FrontendAddress::Vip(vip))
    };
    let records = world.tables.records.values();
    let of_a = records.filter(|record| &*record.key.cluster == "a");
    let holders: Vec<_> = of_a.filter(|record| has_it(record)).collect();
    assert_eq!(holders.len(), 1);
    assert_eq!(&*holders[0].key.service, "web@clusterset");
    let problems = world.pipeline.problems();
    let text = problems.values().next().unwrap()[0].to_string();
    let expected = "already belongs to Service a/ns/web@clusterset";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_local_policy_knows_the_nodes_own_endpoints_only() {
    let mut world = World::new("{}", &[SHARES]);
    let local = ServiceFacts {
        internal_local: true,
        ..facts()
    };
    world.apply(CLUSTERS.map(|cluster| export(cluster, "web", local.clone())));
    let record = world.record("b");
    assert!(record.destinations.is_empty());
    // There are some elsewhere: dropped, not refused.
    assert!(record.available.contains(Family::V4));
    let lists = world.tables.lists.iter();
    let lists = lists.filter(|((_, key), _)| *key == record.key);
    let lists: BTreeMap<_, _> = lists
        .map(|((node, _), lists)| (&*node.name, lists))
        .collect();
    let count = |name: &str| (lists[name].local.len(), lists[name].own.len());
    assert_eq!([count("n0"), count("n1")], [(3, 3), (4, 4)]);
    assert_eq!(lists.len(), 2, "nodes of other clusters have no list");
}

#[test]
fn zones_narrow_down_what_weighs_the_same() {
    let close = ServiceFacts {
        traffic_distribution: Some("PreferClose".into()),
        ..facts()
    };
    let zones = [("a", "eu"), ("b", "eu"), ("c", "us")];
    let mask_of = |more: &[(&str, &str)]| {
        let mut world = World::new("{}", more);
        for (cluster, zone) in zones {
            world.apply(["n0", "n1"].map(|name| node(cluster, name, Some(zone))));
        }
        world.apply(CLUSTERS.map(|cluster| export(cluster, "web", close.clone())));
        world.record("a").zone_mask.clone()
    };
    let mask = mask_of(&[]).unwrap();
    assert_eq!(
        mask.zones,
        ["eu".into()],
        "those of the cluster's own nodes"
    );
    assert_eq!(mask.masks.iter().filter(|mask| **mask == 1).count(), 10);
    assert_eq!(mask_of(&[SHARES]), None, "shares come first");
}

#[test]
fn an_import_needs_a_namespace_and_an_export() {
    let mut world = World::new("{}", &[]);
    let namespace = ObjectKey {
        namespace: "".into(),
        ..key("c", "ns")
    };
    world.apply([deleted(Kind::Namespace, namespace)]);
    assert!(world.tables.import("c", "web").is_none());
    assert_eq!(world.weights("a"), [3, 7, 11], "it exports still");
    let unexport = |cluster| deleted(Kind::ServiceExport, key(cluster, "web"));
    world.apply(["a", "b"].map(unexport));
    assert_eq!(world.weights("a"), [0, 0, 11]);
    world.apply([unexport("c")]);
    assert!(world.tables.import("a", "web").is_none());
    world.apply([export("c", "web", facts())]);
    assert_eq!(world.weights("a"), [0, 0, 11]);
}

#[test]
fn the_winner_stays_until_it_exports_no_more() {
    let mut world = World::new("{}", &[]);
    let aged = |cluster: &str, created, seconds| {
        let facts = ServiceFacts {
            affinity_seconds: Some(seconds),
            ..facts()
        };
        put(Object::ServiceExport(ServiceExport {
            requested: true,
            created: Some(created),
            service: Some(Arc::new(facts)),
            ..ServiceExport::new(key(cluster, "web"))
        }))
    };
    let affinity = |world: &World| world.record("c").affinity.unwrap().timeout_seconds;
    world.apply([aged("a", 20, 1), aged("b", 10, 2), aged("c", 30, 3)]);
    assert_eq!(affinity(&world), 1, "it won when no age was known");
    world.apply([aged("b", 0, 2)]);
    assert_eq!(affinity(&world), 1, "a forged age wins nothing");
    world.apply([deleted(Kind::ServiceExport, key("a", "web"))]);
    assert_eq!(affinity(&world), 2);
    world.apply([aged("a", 0, 1)]);
    assert_eq!(affinity(&world), 2);
    // A winner that has not sent its objects yet is the winner again when it has.
    let mut states = full();
    states.remove("b");
    world.pipeline.set_states(states);
    world.flush();
    assert_eq!(affinity(&world), 1);
    world.states(&[]);
    assert_eq!(affinity(&world), 2);
    // One that nobody waits for any more is another exporter when it comes.
    let mut states = full();
    states.remove("b");
    world.pipeline.set_states(states);
    world.flush();
    world.pipeline.give_up(["b".into()].into());
    assert!(world.pipeline.is_dirty());
    world.flush();
    let kept = &world.pipeline.kept()[&key("c", "web@clusterset")];
    assert_eq!(kept.winner.as_deref(), Some("a"));
    world.states(&[]);
    assert_eq!(affinity(&world), 1);
}

#[test]
fn another_policy_is_planned_and_changes_nothing() {
    let world = World::new("{}", &[SHARES]);
    let deny = (
        "ImportPolicy",
        "{clusters: {names: [a]}, from: {names: [b]}, action: Deny}",
    );
    let planned = world
        .pipeline
        .plan_policies(policies("{}", &[SHARES, deny]));
    let [only] = &planned[..] else {
        panic!("{planned:?}")
    };
    assert_eq!((&*only.cluster, &*only.name), ("a", "ns/web"));
    let (before, after) = (only.before.as_ref().unwrap(), only.after.as_ref().unwrap());
    assert_eq!(before.permille["b"], 200);
    assert_eq!(
        after.permille,
        [("a".to_owned(), 875), ("c".to_owned(), 125)].into()
    );
    assert_eq!(after.clusters, ["a", "c"]);
    assert!(!world.pipeline.is_dirty());
    assert_eq!(world.weights("a")[1] * 7, world.weights("a")[0] * 2);
    let none = world.pipeline.plan_policies(Objects::default());
    assert_eq!(
        none.iter().filter(|import| import.after.is_none()).count(),
        3
    );
}

#[test]
fn an_explanation_names_shares_and_reasons() {
    let deny = ("ImportPolicy", "{from: {names: [c]}, action: Deny}");
    let tiers = "{tiers: [{clusters: [{local: true}]}, {rest: true}], minHealthy: 70%}";
    let mut world = World::new("{}", &[("TrafficPolicy", tiers), deny]);
    let half = (1..=10).map(|number| Endpoint {
        ready: number <= 5,
        ..Endpoint::new(pod("a", number))
    });
    world.apply([slice("a", "web", half.collect())]);
    let name = ImportName {
        namespace: "ns".into(),
        name: "web".into(),
    };
    let shown = world.pipeline.show_import(&"a".into(), &name).unwrap();
    assert_eq!(shown.hidden.len(), 1);
    assert!(shown.hidden[0].1.contains("ImportPolicy p1"), "{shown:?}");
    assert!(
        shown.policy.contains("minHealthy 70% Proportional"),
        "{shown:?}"
    );
    let mut ports = shown.ports.iter();
    let of_v4 = ports.find(|port| port.family == Family::V4).unwrap();
    let [a, b] = &of_v4.clusters[..] else {
        panic!("{of_v4:?}")
    };
    let seen = |of: &ShownCluster| (of.tier, of.load, of.share_permille);
    assert_eq!(seen(a), (Some(1), Some(14), Some(700)));
    assert_eq!(a.weights.iter().map(|(count, _)| count).sum::<usize>(), 5);
    assert!(a.reason.contains("6/20 go on"), "{a:?}");
    assert_eq!(seen(b), (Some(2), Some(6), Some(300)));
    let export = world.pipeline.show_export(&"c".into(), &name).unwrap();
    assert_eq!(export.ready.as_deref(), Some("Exported"));
    let imports = |cluster: &str| {
        let mut importers = export.importers.iter();
        let found = importers.find(|(name, _)| name == cluster);
        found.unwrap().1.is_ok()
    };
    assert!(!imports("a") && imports("c"), "{export:?}");
}

#[test]
fn an_import_is_pending_until_changes_are_flushed() {
    let mut world = World::new("{}", &[]);
    let name = ImportName {
        namespace: "ns".into(),
        name: "web".into(),
    };
    let is_pending = |world: &World| {
        let shown = world.pipeline.show_import(&"a".into(), &name);
        shown.unwrap().pending
    };
    world.pipeline.flush();
    assert!(!is_pending(&world));
    world.pipeline.apply(slice("a", "web", vec![]));
    assert!(is_pending(&world), "no node has been sent the change");
    world.pipeline.flush();
    assert!(!is_pending(&world));
}
