// SPDX-License-Identifier: Apache-2.0

//! Random changes of everything that imports depend on.

use portolan_catalog::ObjectRef;
use portolan_model::Destination;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::{option, sample::select};

use super::*;
use crate::SelectConfig;

const SERVICES: [&str; 2] = ["s0", "s1"];
const NODES: [&str; 2] = ["n0", "n1"];

/// Networks of clusters with gateways and without; of the cluster with [`BEHIND_FEW`] one export has a port.
const FLAT: &str = "nodeCIDRs: [10.250.0.0/24]";
const BEHIND: &str = "mode: Gateway, nodeCIDRs: [192.168.3.0/24], gateway: {ports: 20000-20003}";
const BEHIND_FEW: &str = "mode: Gateway, nodeCIDRs: [192.168.1.0/24], gateway: {nodes: {names: [n0]}, ports: 20000-20000}";
const OPEN: &str = "nodeCIDRs: [192.168.2.0/24], gateway: {ports: 20000-20003}";

/// Quotas that are met by some endpoints.
const FEW: [&str; 3] = [
    "quota: {endpoints: 1}",
    "quota: {endpoints: 2}",
    "quota: {endpoints: 1}",
];

/// One step of a test.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Object(Box<ObjectChange>),
    Policies(usize),
    States(BTreeMap<Arc<str>, ClusterState>),
    Flush,
}

pub(super) fn all_policies() -> Vec<Objects> {
    let tiers = "{services: {names: [s0]}, tiers: [{clusters: [{local: true}]}, {rest: true}], \
                 minHealthy: 70%, spillOver: Proportional}";
    let weights = "{tiers: [{clusters: [{names: [a], weight: 70}, {names: [b], weight: 20}]}]}";
    let deny = "{from: {names: [b]}, action: Deny}";
    let other = "{services: {names: [s1]}, namespaceAs: other}";
    let labelled = "{services: {names: [s0]}, nodes: {matchLabels: {edge: 'true'}}}";
    let named = "{services: {names: [s1]}, clusters: {names: [b, c]}, nodes: {names: [n0]}}";
    let small = "{quota: {endpointsPerExport: 1, exportsPerCluster: 1}}";
    vec![
        policies("{}", &[]),
        policies("{}", &[("TrafficPolicy", tiers)]),
        policies(
            "{exports: {automatic: true}}",
            &[("TrafficPolicy", weights)],
        ),
        policies("{loss: {lastResort: Refuse}}", &[("ImportPolicy", deny)]),
        policies(small, &[("ImportPolicy", other)]),
        policies("{quota: {clusters: 2}}", &[]),
        policies_with("{}", [FLAT, "", BEHIND], &[("TrafficPolicy", tiers)]),
        policies_with("{}", [BEHIND_FEW, FLAT, BEHIND], &[]),
        policies_with(small, [BEHIND_FEW, OPEN, BEHIND], &[]),
        policies_with("{}", [BEHIND, OPEN, FLAT], &[("TrafficPolicy", weights)]),
        policies_of("{}", [""; 3], FEW, &[("TrafficPolicy", tiers)]),
        policies_of(
            "{exports: {automatic: true}}",
            [BEHIND_FEW, FLAT, ""],
            FEW,
            &[],
        ),
        policies("{}", &[("ImportPolicy", labelled), ("ImportPolicy", named)]),
    ]
}

fn cluster() -> impl Strategy<Value = &'static str> + Clone {
    select(&CLUSTERS[..])
}

fn name() -> impl Strategy<Value = &'static str> {
    select(&SERVICES[..])
}

fn endpoint(cluster: &'static str) -> impl Strategy<Value = Endpoint> {
    // Some are in no cluster's network.
    let address = (prop::bool::weighted(0.9), 1..5u8);
    let address = address
        .prop_map(move |(is_own, number)| pod(if is_own { cluster } else { "nobody" }, number));
    let conditions = (prop::bool::weighted(0.7), any::<bool>(), any::<bool>());
    let node = option::weighted(0.8, select(&NODES[..]));
    let hostname = option::weighted(0.3, select(&["h0", "h1"][..]));
    let fields = (address, conditions, node, hostname);
    fields.prop_map(
        |(address, (ready, serving, terminating), node, hostname)| Endpoint {
            hostname: hostname.map(Arc::from),
            ready,
            serving,
            terminating,
            node: node.map(Arc::from),
            ..Endpoint::new(address)
        },
    )
}

fn some_facts() -> impl Strategy<Value = ServiceFacts> {
    let distribution = select(&["PreferClose", "PreferSameNode"][..]);
    let (addressed, headless) = (ServiceType::ClusterIp, ServiceType::Headless);
    (
        prop::bool::weighted(0.2),
        option::weighted(0.2, Just(10u32)),
        option::weighted(0.4, distribution),
        prop_oneof![5 => Just(addressed), 1 => Just(headless)],
        prop_oneof![5 => Just(80u16), 1 => Just(81)],
        prop::bool::weighted(0.3),
    )
        .prop_map(
            |(internal_local, affinity_seconds, distribution, kind, port, is_dual)| {
                let mut facts = ServiceFacts {
                    kind,
                    internal_local,
                    affinity_seconds,
                    traffic_distribution: distribution.map(Arc::from),
                    ..facts()
                };
                facts.ports[0].port = port;
                // No endpoint has the second family.
                facts.families.truncate(if is_dual { 2 } else { 1 });
                facts
            },
        )
}

fn of(change: ObjectChange) -> Object {
    match change {
        ObjectChange::Put { object, .. } => object,
        other => panic!("{other:?}"),
    }
}

fn object() -> impl Strategy<Value = Object> {
    let created = option::of(0..3i64);
    let exports = (cluster(), name(), some_facts(), any::<bool>(), created);
    let exports = exports.prop_map(|(cluster, name, facts, requested, created)| {
        Object::ServiceExport(ServiceExport {
            requested,
            created,
            service: Some(Arc::new(facts)),
            ..ServiceExport::new(key(cluster, name))
        })
    });
    let services = (
        cluster(),
        name(),
        option::weighted(0.3, 0..3u32),
        any::<bool>(),
    );
    let services = services.prop_map(|(cluster, name, drain_seconds, is_greedy)| {
        let mut service = service(cluster, name);
        service.drain_seconds = drain_seconds;
        if is_greedy {
            // The addresses of both imports.
            service.external_ips = [b'0', b'1'].map(|last| [10, 112, 0, last].into()).into();
        }
        Object::Service(service)
    });
    let slices = (cluster(), name()).prop_flat_map(|(cluster, name)| {
        let endpoints = vec(endpoint(cluster), 0..4);
        endpoints.prop_map(move |endpoints| of(slice(cluster, name, endpoints)))
    });
    let zones = option::of(select(&["eu", "us"][..]));
    let nodes = (cluster(), select(&NODES[..]), zones);
    let gateways = (nodes.clone(), any::<bool>(), prop::bool::weighted(0.1));
    let gateways = gateways.prop_map(|((cluster, name, zone), ready, is_forged)| {
        let mut node = gateway_node(if is_forged { "c" } else { cluster }, name, ready);
        node.key.cluster = cluster.into();
        node.info.zone = zone.map(Arc::from);
        if let (Some(_), Some(host)) = (zone, &mut node.host) {
            host.labels.insert("edge".into(), ready.to_string());
        }
        Object::Node(node)
    });
    prop_oneof![
        3 => exports,
        3 => services,
        6 => slices,
        1 => nodes.prop_map(|(cluster, name, zone)| of(node(cluster, name, zone))),
        3 => gateways,
        2 => cluster().prop_map(|cluster| of(namespace(cluster))),
    ]
}

pub(super) fn states() -> impl Strategy<Value = BTreeMap<Arc<str>, ClusterState>> {
    let state = (
        0..21u8,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    );
    let state = state.prop_map(|(step, drained, lost)| ClusterState {
        step: if lost { 0 } else { step },
        drained,
        lost,
    });
    let state = prop_oneof![2 => Just(ClusterState::default()), 1 => state];
    let last = option::weighted(0.8, state.clone());
    (state.clone(), state, last).prop_map(|(a, b, c)| {
        let all = [("a", Some(a)), ("b", Some(b)), ("c", c)].into_iter();
        all.filter_map(|(name, state)| Some((name.into(), state?)))
            .collect()
    })
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let changed = |change| Step::Object(Box::new(change));
    prop_oneof![
        12 => object().prop_map(move |object| changed(put(object))),
        3 => object().prop_map(move |object| changed(ObjectChange::Delete(object.reference()))),
        1 => (0..13usize).prop_map(Step::Policies),
        1 => states().prop_map(Step::States),
        4 => Just(Step::Flush),
    ]
}

/// A policy, and members that export a Service with two pods each.
pub(super) fn start(policy: usize) -> Vec<Step> {
    let objects = CLUSTERS.iter().flat_map(|name| {
        let pods = [1, 2].map(|number| Endpoint::new(pod(name, number)));
        [
            namespace(name),
            put(Object::Service(service(name, "s0"))),
            slice(name, "s0", pods.into()),
            export(name, "s0", single()),
            gateway(name, "n0", true),
        ]
    });
    let objects = objects.map(|change| Step::Object(Box::new(change)));
    let start = [Step::Policies(policy), Step::States(full())];
    start.into_iter().chain(objects).collect()
}

/// The inputs at the end of a test.
#[derive(Default)]
pub(super) struct Inputs {
    objects: BTreeMap<ObjectRef, Object>,
    policies: Objects,
    states: BTreeMap<Arc<str>, ClusterState>,
}

impl Inputs {
    pub(super) fn take(&mut self, pipeline: &mut Pipeline, policies: &[Objects], step: Step) {
        match step {
            Step::Object(change) => {
                match &*change {
                    ObjectChange::Put { object, .. } => {
                        self.objects.insert(object.reference(), object.clone());
                    }
                    ObjectChange::Delete(object) => _ = self.objects.remove(object),
                    other => panic!("{other:?}"),
                }
                pipeline.apply(*change);
            }
            Step::Policies(number) => {
                self.policies = policies[number].clone();
                pipeline.set_policies(self.policies.clone());
            }
            Step::States(states) => {
                self.states.clone_from(&states);
                pipeline.set_states(states);
            }
            Step::Flush => {}
        }
    }

    pub(super) fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// The same from scratch, with what was kept of imports.
    fn anew(self, before: &Pipeline) -> Pipeline {
        let mut pipeline = Pipeline::new(SelectConfig::default());
        pipeline.set_kept(before.kept().clone());
        for (cluster, ports) in before.gateway_ports() {
            pipeline.set_gateway_ports(cluster, ports.clone());
        }
        pipeline.set_policies(self.policies);
        pipeline.set_states(self.states);
        for object in self.objects.into_values().rev() {
            pipeline.apply(put(object));
        }
        pipeline
    }
}

/// Every endpoint of an import is in a cluster's network, and none weighs nothing. Gateways see the addresses of nodes
/// alone, and admit no others.
fn are_sane(tables: &Tables) -> Result<(), TestCaseError> {
    let records = tables.records.values();
    let at_gateways = |record: &&Arc<Record>| record.key.service.ends_with("@gateway");
    for record in records.clone().filter(at_gateways) {
        let number = CLUSTERS
            .iter()
            .position(|name| **name == *record.key.cluster);
        for Destination { address, .. } in &record.destinations {
            let IpAddr::V4(ip) = address.ip() else {
                panic!("{address}")
            };
            prop_assert_eq!(
                Some(usize::from(ip.octets()[1]) - 1),
                number,
                "{:?}",
                record
            );
        }
        prop_assert!(!record.frontends.is_empty());
        for frontend in &record.frontends {
            let is_closed = frontend.masquerade && !frontend.source_ranges.is_empty();
            prop_assert!(is_closed && !frontend.bind, "{:?}", record);
        }
    }
    for record in records.filter(|record| record.key.service.ends_with("@clusterset")) {
        for Destination { address, weight } in &record.destinations {
            prop_assert!(*weight > 0, "{record:?}");
            let IpAddr::V4(ip) = address.ip() else {
                panic!("{address}")
            };
            if ip.octets()[0] == 192 {
                let frontends = record.frontends.iter();
                let mut frontends = frontends.filter(|one| one.family() == Family::V4);
                let masquerade = frontends.all(|one| one.masquerade);
                prop_assert!(masquerade, "a pod's address at a gateway: {record:?}");
                continue;
            }
            prop_assert!(ip.octets()[1] <= 3, "a forged address: {record:?}");
        }
        prop_assert!(!record.frontends.is_empty());
    }
    Ok(())
}

/// Brings the names of imports up to date.
fn follow(pipeline: &mut Pipeline, names: &mut BTreeMap<ObjectKey, NamedImport>) {
    for key in pipeline.take_renamed() {
        match pipeline.named(&key) {
            Some(named) => _ = names.insert(key, named),
            None => _ = names.remove(&key),
        }
    }
}

/// A case takes 60 ms of a processor: `make test-all` runs more of them.
pub(super) fn cases() -> u32 {
    match std::env::var_os("PORTOLAN_ALL_CASES") {
        Some(_) => 600,
        None => 100,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn imports_that_follow_changes_equal_imports_from_scratch(
        policy in 0..13usize,
        steps in vec(step(), 0..60),
    ) {
        let policies = all_policies();
        let mut pipeline = Pipeline::new(SelectConfig::default());
        let mut inputs = Inputs::default();
        let mut tables = Tables::default();
        let mut names = BTreeMap::new();
        pipeline.follow_names();
        for step in start(policy).into_iter().chain(steps).chain([Step::Flush]) {
            let is_flush = matches!(step, Step::Flush);
            inputs.take(&mut pipeline, &policies, step);
            if is_flush {
                allocate(&mut pipeline);
                tables.fold(pipeline.flush());
                are_sane(&tables)?;
                follow(&mut pipeline, &mut names);
            }
        }
        let mut audit = pipeline.audit();
        while !audit.is_done() {
            prop_assert_eq!(pipeline.continue_audit(&mut audit, 2), TableDelta::default());
        }
        let mut anew = inputs.anew(&pipeline);
        let mut from_scratch = Tables::default();
        from_scratch.fold(anew.flush());
        prop_assert_eq!(&tables.records, &from_scratch.records);
        prop_assert_eq!(&tables.lists, &from_scratch.lists);
        prop_assert_eq!(&tables.nodes, &from_scratch.nodes);
        prop_assert_eq!(pipeline.problems(), anew.problems());
        let mut names_from_scratch = BTreeMap::new();
        anew.follow_names();
        follow(&mut anew, &mut names_from_scratch);
        prop_assert_eq!(names, names_from_scratch);
        for import in pipeline.kept().keys() {
            let deciding = pipeline.projections(import, Extent::Deciding);
            prop_assert_eq!(deciding, pipeline.projections(import, Extent::All));
        }
        prop_assert!(!pipeline.is_dirty());
    }
}

/// The generator makes imports, or the property says nothing.
#[test]
fn random_worlds_have_imports() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (policies, mut found, mut at_gateways) = (all_policies(), 0, 0);
    for number in 0..100 {
        let steps = vec(step(), 60).new_tree(&mut runner).unwrap().current();
        let mut pipeline = Pipeline::new(SelectConfig::default());
        let mut inputs = Inputs::default();
        for step in start(number % 13).into_iter().chain(steps) {
            inputs.take(&mut pipeline, &policies, step);
        }
        allocate(&mut pipeline);
        let records = pipeline.flush().records.into_values().flatten();
        let records: Vec<_> = records.collect();
        let ends = |record: &&Arc<Record>, end| record.key.service.ends_with(end);
        at_gateways += records.iter().filter(|one| ends(one, "@gateway")).count();
        let imports = records.iter().filter(|one| ends(one, "@clusterset"));
        found += imports
            .filter(|record| record.destinations.len() > 1)
            .count();
    }
    assert!(found > 30, "{found} imports");
    assert!(at_gateways > 10, "{at_gateways} exports at gateways");
}
