// SPDX-License-Identifier: Apache-2.0

//! Tables of a cluster's own controller, by plans of a centre, against those of the centre.

mod hidden;

use portolan_federate::plans::PlanChanges;
use proptest::collection::vec;
use proptest::prelude::*;

use super::random::{Inputs, Step, all_policies, cases, start, step};
use super::*;
use crate::{PlanBook, SelectConfig};

/// The controller of a cluster, and what the centre knows of it.
struct Edge {
    cluster: Arc<str>,
    pipeline: Pipeline,
    tables: Tables,
    book: PlanBook,
}

impl Edge {
    fn new(cluster: &str) -> Self {
        let cluster: Arc<str> = cluster.into();
        let mut pipeline = Pipeline::new(SelectConfig::default());
        pipeline.follow_centre(&cluster, Vec::new());
        Self {
            book: PlanBook::new(Arc::clone(&cluster)),
            tables: Tables::default(),
            pipeline,
            cluster,
        }
    }

    /// Takes in an object of its cluster.
    fn see(&mut self, change: &ObjectChange) {
        let cluster = match change {
            ObjectChange::Put { object, .. } => object.reference().key.cluster,
            ObjectChange::Delete(object) => Arc::clone(&object.key.cluster),
            other => panic!("{other:?}"),
        };
        if cluster == self.cluster {
            self.pipeline.apply(change.clone());
        }
    }

    fn flush(&mut self) {
        assert_eq!(self.pipeline.wanted(), None);
        assert_eq!(self.pipeline.wanted_ports(), None);
        self.tables.fold(self.pipeline.flush());
    }
}

/// A centre, its edges, and all policies that it may have.
struct Set {
    centre: Pipeline,
    tables: Tables,
    edges: Vec<Edge>,
    inputs: Inputs,
    policies: Vec<Objects>,
}

impl Set {
    fn new() -> Self {
        let mut centre = Pipeline::new(SelectConfig::default());
        centre.follow_plans();
        Self {
            centre,
            tables: Tables::default(),
            edges: CLUSTERS.map(Edge::new).into(),
            inputs: Inputs::default(),
            policies: all_policies(),
        }
    }

    fn take(&mut self, step: Step) {
        if let Step::Object(change) = &step {
            self.edges.iter_mut().for_each(|edge| edge.see(change));
        }
        let is_flush = matches!(step, Step::Flush);
        self.inputs.take(&mut self.centre, &self.policies, step);
        if is_flush {
            self.flush();
            self.send();
        }
    }

    /// Brings all tables up to date, without plans.
    fn flush(&mut self) {
        allocate(&mut self.centre);
        self.tables.fold(self.centre.flush());
        self.edges.iter_mut().for_each(Edge::flush);
    }

    /// Brings plans to the edges.
    fn send(&mut self) {
        let mut replanned = self.centre.take_replanned();
        for edge in &mut self.edges {
            let changes = self.centre.plan_changes(&mut edge.book, &mut replanned);
            edge.pipeline.take_plans(changes);
            edge.flush();
        }
    }

    /// The tables of each edge are those that the centre has for its cluster.
    fn check(&self) {
        CLUSTERS.iter().for_each(|cluster| self.check_one(cluster));
    }

    fn check_one(&self, cluster: &str) {
        for edge in self.edges.iter().filter(|edge| *edge.cluster == *cluster) {
            let of = |tables: &Tables| {
                let records = tables.records.iter();
                let records = records.filter(|(key, _)| key.cluster == edge.cluster);
                let records: BTreeMap<_, _> = records
                    .map(|(key, record)| (key.clone(), Arc::clone(record)))
                    .collect();
                let lists = tables.lists.iter();
                let lists = lists.filter(|((node, _), _)| node.cluster == edge.cluster);
                let lists: BTreeMap<_, _> = lists
                    .map(|(place, lists)| (place.clone(), lists.clone()))
                    .collect();
                let nodes = tables.nodes.iter();
                let nodes = nodes.filter(|(node, _)| node.cluster == edge.cluster);
                let nodes: BTreeMap<_, _> = nodes
                    .map(|(node, info)| (node.clone(), info.clone()))
                    .collect();
                (records, lists, nodes)
            };
            pretty(&of(&edge.tables), &of(&self.tables));
        }
    }
}

#[track_caller]
fn pretty<T: PartialEq + std::fmt::Debug>(edge: &T, centre: &T) {
    assert!(edge == centre, "edge: {edge:#?}\ncentre: {centre:#?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// Whatever changes, in any order.
    #[test]
    fn an_edge_has_the_tables_that_its_centre_has_for_its_cluster(
        policy in 0..13usize,
        steps in vec(step(), 0..60),
    ) {
        let mut set = Set::new();
        for step in start(policy).into_iter().chain(steps).chain([Step::Flush]) {
            let is_flush = matches!(step, Step::Flush);
            set.take(step);
            if is_flush {
                set.check();
            }
        }
        for edge in &mut set.edges {
            let mut audit = edge.pipeline.audit();
            while !audit.is_done() {
                let found = edge.pipeline.continue_audit(&mut audit, 2);
                prop_assert_eq!(found, TableDelta::default());
            }
            prop_assert!(!edge.pipeline.is_dirty());
        }
        // Nothing is sent again, and a book that begins anew brings the same.
        let mut replanned = set.centre.take_replanned();
        for edge in &mut set.edges {
            prop_assert!(set.centre.plan_changes(&mut edge.book, &mut replanned).is_empty());
            let mut book = PlanBook::new(Arc::clone(&edge.cluster));
            let all = set.centre.plan_changes(&mut book, &mut replanned);
            edge.pipeline.take_plans(all);
            let before = edge.tables.records.clone();
            edge.flush();
            prop_assert_eq!(&before, &edge.tables.records);
        }
    }
}

/// A set with the first policy, in which each cluster exports one Service.
fn begun() -> Set {
    let mut set = Set::new();
    for step in start(0).into_iter().chain([Step::Flush]) {
        set.take(step);
    }
    set.check();
    set
}

fn destinations(tables: &Tables, cluster: &str) -> usize {
    let record = tables.import(cluster, "s0");
    record.map_or(0, |record| record.destinations.len())
}

#[test]
fn own_endpoints_change_an_import_without_the_centre() {
    let mut set = begun();
    assert_eq!(destinations(&set.edges[0].tables, "a"), 6);
    let one = slice("a", "s0", vec![Endpoint::new(pod("a", 1))]);
    set.edges[0].see(&one);
    set.edges[0].flush();
    assert_eq!(destinations(&set.edges[0].tables, "a"), 5);
    // The centre, once it hears of it, says the same.
    set.inputs
        .take(&mut set.centre, &set.policies, Step::Object(Box::new(one)));
    set.flush();
    set.check_one("a");
    set.send();
    set.check();
}

/// Takes steps, and brings them to all.
fn taken(set: &mut Set, changes: Vec<ObjectChange>) {
    let steps = changes
        .into_iter()
        .map(|change| Step::Object(Box::new(change)));
    steps.chain([Step::Flush]).for_each(|step| set.take(step));
    set.check();
}

/// The plans that an edge gets of a change at the centre: of imports, Services and clusters.
fn plans_of(set: &mut Set, step: Step) -> Vec<[usize; 3]> {
    if let Step::Object(change) = &step {
        set.edges.iter_mut().for_each(|edge| edge.see(change));
    }
    set.inputs.take(&mut set.centre, &set.policies, step);
    set.flush();
    let mut replanned = set.centre.take_replanned();
    let edges = set.edges.iter_mut().map(|edge| {
        let changes = set.centre.plan_changes(&mut edge.book, &mut replanned);
        let counts = [
            changes.imports.len(),
            changes.services.len(),
            changes.clusters.len(),
        ];
        edge.pipeline.take_plans(changes);
        edge.flush();
        counts
    });
    let counts = edges.collect();
    set.check();
    counts
}

/// They have no part of its plan.
#[test]
fn endpoints_and_states_make_no_plan_of_an_import() {
    let mut set = begun();
    let one = slice("b", "s0", vec![Endpoint::new(pod("b", 1))]);
    let one = plans_of(&mut set, Step::Object(Box::new(one)));
    assert_eq!(one, [[0, 1, 0], [0, 0, 0], [0, 1, 0]]);
    let lost = ClusterState {
        step: 0,
        drained: false,
        lost: true,
    };
    let mut states = full();
    states.insert("b".into(), lost);
    let lost = plans_of(&mut set, Step::States(states));
    assert_eq!(lost, [[0, 0, 3]; 3]);
    assert_eq!(destinations(&set.edges[0].tables, "a"), 4);
    // What exports say has one.
    let settings = ServiceFacts {
        affinity_seconds: Some(7),
        ..single()
    };
    let export = Step::Object(Box::new(export("a", "s0", settings)));
    let exported = plans_of(&mut set, export).into_iter();
    assert!(exported.map(|[imports, ..]| imports).eq([1; 3]));
}

#[test]
fn an_edge_knows_the_endpoints_of_clusters_that_do_not_decide_yet() {
    let mut set = begun();
    // Own endpoints first.
    set.take(Step::Policies(1));
    taken(&mut set, vec![]);
    assert_eq!(destinations(&set.edges[0].tables, "a"), 2);
    let more = [1, 2, 3, 4].map(|number| Endpoint::new(pod("b", number)));
    taken(&mut set, vec![slice("b", "s0", more.into())]);
    assert_eq!(destinations(&set.edges[0].tables, "a"), 2);
    // Without the centre.
    let none = slice("a", "s0", vec![]);
    set.edges[0].see(&none);
    set.edges[0].flush();
    assert_eq!(destinations(&set.edges[0].tables, "a"), 6);
}

#[test]
fn a_service_whose_first_plan_comes_after_its_import_has_endpoints() {
    let set = begun();
    let mut edge = Edge::new("a");
    set.inputs
        .objects()
        .for_each(|object| edge.see(&put(object.clone())));
    let mut changes = set
        .centre
        .plan_changes(&mut edge.book, &mut Default::default());
    let mut services = std::mem::take(&mut changes.services).into_iter();
    edge.pipeline.take_plans(changes);
    edge.flush();
    assert_eq!(destinations(&edge.tables, "a"), 2, "its own");
    for expected in [4, 6] {
        edge.pipeline.take_plans(PlanChanges {
            services: services.next().into_iter().collect(),
            ..PlanChanges::default()
        });
        edge.flush();
        assert_eq!(destinations(&edge.tables, "a"), expected);
    }
}

#[test]
fn zones_of_other_clusters_count_at_an_edge() {
    let mut set = begun();
    let zoned = CLUSTERS.iter().flat_map(|cluster| {
        let endpoints = [1, 2].map(|number| Endpoint {
            node: Some(format!("n{}", number - 1).into()),
            ..Endpoint::new(pod(cluster, number))
        });
        let facts = ServiceFacts {
            traffic_distribution: Some("PreferClose".into()),
            ..single()
        };
        [
            node(cluster, "n0", Some("eu")),
            node(cluster, "n1", Some("us")),
            export(cluster, "s0", facts),
            slice(cluster, "s0", endpoints.into()),
        ]
    });
    taken(&mut set, zoned.collect());
    let masks = |set: &Set| {
        let import = set.edges[0].tables.import("a", "s0").unwrap();
        import.zone_mask.clone().unwrap().masks
    };
    let before = masks(&set);
    assert_eq!(before.len(), 6);
    // A node of another cluster moves.
    taken(&mut set, vec![node("b", "n0", Some("us"))]);
    assert_ne!(masks(&set), before);
}

#[test]
fn the_last_resort_of_the_set_is_that_of_an_edge() {
    for (policy, left) in [(0, 6), (3, 0)] {
        let mut set = begun();
        set.take(Step::Policies(policy));
        let lost = CLUSTERS.map(|name| {
            let state = ClusterState {
                step: 0,
                drained: false,
                lost: true,
            };
            (Arc::from(name), state)
        });
        set.take(Step::States(lost.into()));
        taken(&mut set, vec![]);
        assert_eq!(destinations(&set.edges[0].tables, "a"), left, "{policy}");
    }
}

#[test]
fn a_centre_takes_no_address_of_the_cluster() {
    let forged = |ip: [u8; 4], ranges: &str, reason: &str| {
        let set = begun();
        let mut edge = Edge::new("a");
        let ranges = ranges
            .split_whitespace()
            .map(|range| range.parse().unwrap());
        edge.pipeline.follow_centre(&edge.cluster, ranges.collect());
        set.inputs
            .objects()
            .for_each(|object| edge.see(&put(object.clone())));
        let mut balanced = service("a", "balanced");
        balanced.load_balancer_ips = vec![[203, 0, 113, 1].into()];
        edge.see(&put(Object::Service(balanced)));
        let mut greedy = service("a", "greedy");
        greedy.external_ips = vec![[10, 112, 0, 77].into()];
        edge.see(&put(Object::Service(greedy)));
        let mut changes = set
            .centre
            .plan_changes(&mut edge.book, &mut Default::default());
        for plan in changes.imports.values_mut().flatten() {
            plan.ips = vec![ip.into()];
        }
        edge.pipeline.take_plans(changes);
        edge.flush();
        let problems = edge.pipeline.problems();
        let found = problems.values().flatten();
        let mut found = found.filter(|problem| problem.message.contains("AddressRefused"));
        let is_served = destinations(&edge.tables, "a") > 0;
        match found.next() {
            Some(problem) => {
                assert!(
                    problem.message.contains(reason),
                    "{problem:?}, expected {reason}"
                );
                assert!(!is_served, "{ip:?}: refused and served");
            }
            None => assert!(reason.is_empty() && is_served, "{ip:?}: not refused"),
        }
    };
    forged([10, 112, 0, 9], "", "");
    forged([10, 112, 0, 9], "10.112.0.0/16 fd00::/8", "");
    forged(
        [10, 113, 0, 9],
        "10.112.0.0/16 fd00::/8",
        "--federation-address-range",
    );
    // Its own cluster IPs, load balancers and nodes; not what any author of a Service may write.
    forged([10, 112, 0, 77], "", "");
    forged([203, 0, 113, 1], "", "Service ns/balanced");
    forged(cluster_ip(), "", "Service ns/");
    forged([192, 168, 1, 0], "", "Node n0");
    forged([127, 0, 0, 1], "", "no address that a Service can have");
    forged(
        [169, 254, 169, 254],
        "",
        "no address that a Service can have",
    );
}

#[test]
fn an_address_of_an_import_is_judged_anew_when_services_and_nodes_change() {
    let set = begun();
    let mut edge = Edge::new("a");
    set.inputs
        .objects()
        .for_each(|object| edge.see(&put(object.clone())));
    let mut changes = set
        .centre
        .plan_changes(&mut edge.book, &mut Default::default());
    let ip: IpAddr = [10, 112, 0, 9].into();
    for plan in changes.imports.values_mut().flatten() {
        plan.ips = vec![ip];
    }
    edge.pipeline.take_plans(changes);
    edge.flush();
    assert!(destinations(&edge.tables, "a") > 0);
    let plain = service("a", "other");
    let balanced = Service {
        load_balancer_ips: vec![ip],
        ..plain.clone()
    };
    let given = Service {
        cluster_ips: vec![ip],
        ..plain.clone()
    };
    let host = |addresses: &[IpAddr]| {
        let key = ObjectKey {
            namespace: "".into(),
            ..key("a", "n9")
        };
        Object::Node(Node {
            addresses: addresses.iter().copied().collect(),
            ..Node::new(key)
        })
    };
    let gone = |object: &Object| ObjectChange::Delete(object.reference());
    let [plain, balanced, given] = [plain, balanced, given].map(Object::Service);
    for (change, is_served) in [
        (put(plain.clone()), true),
        (put(balanced.clone()), false),
        (put(plain.clone()), true),
        (put(given.clone()), false),
        (gone(&given), true),
        (put(balanced.clone()), false),
        (gone(&balanced), true),
        (put(host(&[])), true),
        (put(host(&[ip])), false),
        (put(host(&[])), true),
        (put(host(&[ip])), false),
        (gone(&host(&[ip])), true),
    ] {
        edge.see(&change);
        assert!(edge.pipeline.is_dirty(), "{change:?}");
        edge.flush();
        let has_import = destinations(&edge.tables, "a") > 0;
        assert_eq!(has_import, is_served, "{change:?}");
        let problems = edge.pipeline.problems();
        let mut found = problems.values().flatten();
        let is_refused = found.any(|problem| problem.message.contains("AddressRefused"));
        assert_eq!(is_refused, !is_served, "{change:?}");
    }
}

fn cluster_ip() -> [u8; 4] {
    match service("a", "s0").cluster_ips[0] {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => panic!("{ip}"),
    }
}
