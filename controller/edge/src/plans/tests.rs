// SPDX-License-Identifier: Apache-2.0

//! The edge has the plans of the centre, after any changes and over any streams, or none of a transition.

mod refusals;

use std::collections::BTreeMap;

use portolan_federate::imports::{Traffic, TrafficReason};
use portolan_federate::merge::{Affinity, ImportPort, Port};
use portolan_federate::plans::{
    ClusterPlan, GatewayPlan, ImportPlan, PlanChanges, PlanEndpoint, PlanPort, PortPlan,
    ServicePlan, SetPlan, StatePlan,
};
use portolan_federate::shares::Tier;
use portolan_model::{Protocol, Scheduling};
use portolan_policy::spec::{NetworkSpec, SelectorSpec, SpillOver};
use portolan_policy::{Network, SchedulerName, Selector, Threshold};
use portolan_proto::v1;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;
use prost::bytes::Bytes;

use super::*;
use crate::StreamId;

fn name(name: &str) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn export(cluster: &str, service: &str) -> ExportName {
    ExportName {
        cluster: cluster.into(),
        service: name(service),
    }
}

fn network() -> Network {
    let text = r#"{"mode": "Gateway", "podCIDRs": ["10.1.0.0/16"], "nodeCIDRs": ["192.168.1.0/24"],
        "clusterSetIPs": ["10.112.0.0/16"], "gateway": {"ports": "20000-29999", "nodes": {"names": ["g*"]}}}"#;
    let spec: NetworkSpec = serde_json::from_str(text).unwrap();
    Network::of(&spec).unwrap()
}

fn cluster(step: u8) -> ClusterPlan {
    ClusterPlan {
        id: "eu-1".into(),
        state: (step < 20).then_some(StatePlan {
            step,
            drained: true,
            lost: step == 0,
        }),
        network: Some(network()).filter(|_| step > 0),
        set: Some(SetPlan {
            endpoints_per_export: 7,
            keeps_last: true,
        }),
    }
}

fn selector(label: &str) -> Selector {
    let text = format!(r#"{{"names": ["n*"], "matchLabels": {{"edge": "{label}"}}}}"#);
    let spec: SelectorSpec = serde_json::from_str(&text).unwrap();
    Selector::of(&spec).unwrap()
}

/// An import with a value in each field.
fn import(last: u8) -> ImportPlan {
    let ids: [Arc<str>; 2] = ["eu-1".into(), "us-1".into()];
    ImportPlan {
        ips: vec![[10, 112, 0, last].into(), "fd00::1".parse().unwrap()],
        winner: "eu-1".into(),
        ports: vec![ImportPort {
            port: Port {
                name: "http".into(),
                protocol: Protocol::Sctp,
                number: 80,
                app_protocol: Some("h2c".into()),
            },
            clusters: ids.clone().into(),
        }],
        affinity: Affinity::ClientIp {
            timeout_seconds: 60,
        },
        internal_local: true,
        traffic_distribution: Some("PreferClose".into()),
        sources: [("eu-1".into(), name("web")), ("us-1".into(), name("web"))].into(),
        nodes: Some("edge-nodes".into()),
        traffic: Traffic {
            reason: TrafficReason::Alike,
            shadowed: Vec::new(),
            tiers: vec![
                Tier::Alike(ids.clone().into()),
                Tier::Weighted(ids.map(|id| (id, 1_000)).into()),
            ],
            min_healthy: match last {
                0 => Threshold::Percent(70),
                number => Threshold::Number(number.into()),
            },
            spill_over: match last {
                0 => SpillOver::Proportional,
                _ => SpillOver::AllAtOnce,
            },
            panic_threshold: 20,
            max_endpoints: 256,
            scheduler: Some(SchedulerName::Wlc),
        },
        scheduling: Scheduling {
            scheduler: Some("mh".into()),
            flags: Some(portolan_model::ipvs::Flags(8)),
        },
        drain_seconds: Some(0),
    }
}

/// A Service with so many endpoints of each of its two ports.
fn service(endpoints: u16) -> ServicePlan {
    let port = |number: u16| {
        let port = PlanPort {
            name: format!("p{number}").into(),
            protocol: Protocol::Udp,
            number,
        };
        let all = (0..endpoints).map(|index| {
            let [high, low] = index.to_be_bytes();
            let endpoint = PlanEndpoint {
                ready: index % 2 == 0,
                serving: index % 3 == 0,
                terminating: index % 5 == 0,
                weight: u32::from(index) + 1,
                zone: (index % 7 == 0).then(|| "eu".into()),
            };
            (([10, 1, high, low], number + 1000).into(), endpoint)
        });
        let gateways = [(([192, 168, 1, 1], 20_000).into(), Some("eu".into()))];
        let plan = PortPlan {
            endpoints: all.collect(),
            gateways: gateways.into(),
        };
        (port, plan)
    };
    ServicePlan {
        by_gateways: endpoints % 2 == 1,
        ports: [port(80), port(81)].into(),
    }
}

fn gateway(port: u16) -> GatewayPlan {
    GatewayPlan {
        importers: ["us-1".into()].into(),
        ports: [(("http".into(), Protocol::Tcp), port)].into(),
    }
}

/// All that there is after changes.
#[derive(Debug, Default, Clone, PartialEq)]
struct All(PlanChanges);

impl All {
    fn take(&mut self, changes: PlanChanges) {
        self.0.extend(changes);
        let Self(all) = self;
        all.clusters.retain(|_, plan| plan.is_some());
        all.groups.retain(|_, plan| plan.is_some());
        all.imports.retain(|_, plan| plan.is_some());
        all.services.retain(|_, plan| plan.is_some());
        all.gateways.retain(|_, plan| plan.is_some());
    }
}

/// Delivers the next transition of the stream to the inbox. Returns the number of plans that were put.
fn send(outbox: &mut PlanOutbox, stream: StreamId, inbox: &mut PlanInbox, all: &mut All) -> usize {
    let Some(transition) = outbox.take(stream, true) else {
        return 0;
    };
    let put = transition.put.len();
    let (parts, commit) = transition.into_parts(1_000);
    for part in parts {
        assert_eq!(inbox.stage(part).unwrap(), []);
    }
    all.take(inbox.commit(&commit).unwrap());
    put
}

fn any_changes() -> impl Strategy<Value = PlanChanges> {
    let clusters = vec((0..2u8, option::of(0..21u8)), 0..3);
    let groups = vec((0..2u8, option::of(0..2u8)), 0..2);
    let imports = vec((0..3u8, option::of(0..3u8)), 0..3);
    let services = vec((0..2u8, option::of(select_sizes())), 0..3);
    let gateways = vec((0..2u8, option::of(1..3u16)), 0..2);
    (clusters, groups, imports, services, gateways).prop_map(
        |(clusters, groups, imports, services, gateways)| PlanChanges {
            clusters: keyed(clusters, |n| format!("c{n}").as_str().into(), cluster),
            groups: keyed(
                groups,
                |n| format!("g{n}").as_str().into(),
                |n| selector(&n.to_string()),
            ),
            imports: keyed(imports, |n| name(&format!("i{n}")), import),
            services: keyed(
                services,
                |n| export("us-1", &format!("s{n}")),
                |size| service(size).into(),
            ),
            gateways: keyed(gateways, |n| name(&format!("w{n}")), gateway),
        },
    )
}

/// Sizes with other numbers of parts.
fn select_sizes() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0u16), Just(1), 2..40u16, 100..300u16]
}

fn keyed<N, K: Ord, V>(
    from: Vec<(u8, Option<N>)>,
    key: impl Fn(u8) -> K,
    value: impl Fn(N) -> V,
) -> BTreeMap<K, Option<V>> {
    let all = from.into_iter();
    all.map(|(number, of)| (key(number), of.map(&value)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the plans change, and wherever a stream or the edge begins again.
    #[test]
    fn an_edge_has_the_plans_of_its_centre(
        all in vec((any_changes(), any::<bool>(), any::<bool>()), 1..12),
    ) {
        let (mut outbox, mut expected) = (PlanOutbox::default(), All::default());
        let mut parts = PlanParts::default();
        let (mut inbox, mut has) = (PlanInbox::default(), All::default());
        let mut stream = outbox.begin(&inbox.plans().bucket_hashes()).unwrap();
        for (changes, begins_again, starts_again) in all {
            prop_assert_eq!(outbox.apply(&changes, &mut parts), []);
            expected.take(changes);
            if starts_again {
                // The edge with what it has saved.
                let saved = inbox.plans().to_bytes();
                let (plans, refused) = Plans::from_bytes(saved).unwrap();
                prop_assert_eq!(refused, []);
                prop_assert!(plans.since(inbox.plans()).is_empty());
                inbox = PlanInbox::new(plans);
            }
            if begins_again || starts_again {
                outbox.end(stream);
                let plans = inbox.plans().clone();
                stream = outbox.begin(&plans.bucket_hashes()).unwrap();
                inbox = PlanInbox::new(plans);
            }
            send(&mut outbox, stream, &mut inbox, &mut has);
            prop_assert_eq!(&has, &expected);
            let mut from_nothing = All::default();
            from_nothing.take(inbox.plans().since(&Plans::default()));
            prop_assert_eq!(&from_nothing, &expected);
            prop_assert!(outbox.take(stream, true).is_none(), "sent twice");
        }
    }
}

/// An outbox with a plan of each kind.
fn filled() -> PlanOutbox {
    let mut outbox = PlanOutbox::default();
    let changes = PlanChanges {
        clusters: [("eu-1".into(), Some(cluster(3)))].into(),
        groups: [("nodes".into(), Some(selector("true")))].into(),
        imports: [(name("web"), Some(import(1)))].into(),
        services: [(export("us-1", "web"), Some(service(300).into()))].into(),
        gateways: [(name("web"), Some(gateway(20_001)))].into(),
    };
    assert_eq!(outbox.apply(&changes, &mut PlanParts::default()), []);
    outbox
}

#[test]
fn a_stream_that_begins_again_brings_what_differs() {
    let mut outbox = filled();
    let (mut inbox, mut all) = (PlanInbox::default(), All::default());
    let stream = outbox.begin(&inbox.plans().bucket_hashes()).unwrap();
    let first = send(&mut outbox, stream, &mut inbox, &mut all);
    assert!(first > 10, "{first} items: a Service has parts");
    outbox.end(stream);
    let plans = inbox.plans().clone();
    let stream = outbox.begin(&plans.bucket_hashes()).unwrap();
    let mut inbox = PlanInbox::new(plans);
    assert_eq!(send(&mut outbox, stream, &mut inbox, &mut all), 0);
    // One endpoint more is in one part.
    let mut changed = service(300);
    let port = changed.ports.values_mut().next().unwrap();
    let endpoint = port.endpoints.values().next().unwrap().clone();
    port.endpoints.insert(([10, 1, 9, 9], 80).into(), endpoint);
    let services = [(export("us-1", "web"), Some(changed.into()))].into();
    let changes = PlanChanges {
        services,
        ..PlanChanges::default()
    };
    assert_eq!(outbox.apply(&changes, &mut PlanParts::default()), []);
    assert_eq!(send(&mut outbox, stream, &mut inbox, &mut all), 1);
}

#[test]
fn nothing_is_sent_before_the_plans_are_complete() {
    let mut outbox = PlanOutbox::default();
    let stream = outbox.begin(&Plans::default().bucket_hashes()).unwrap();
    assert!(outbox.take(stream, true).is_none());
    outbox.apply(&PlanChanges::default(), &mut PlanParts::default());
    let transition = outbox.take(stream, false).expect("an empty listing");
    assert!(transition.commit.listing && !transition.commit.leading);
    assert!(outbox.take(stream, false).is_none());
    // A replica that leads from now on says so.
    let transition = outbox.take(stream, true).expect("news");
    assert!(!transition.commit.listing && transition.commit.leading);
}

#[test]
fn a_transition_that_is_not_whole_ends_the_stream() {
    let all = || {
        let mut outbox = filled();
        let stream = outbox.begin(&Plans::default().bucket_hashes()).unwrap();
        let (parts, commit) = outbox.take(stream, true).unwrap().into_parts(1_000);
        (parts, commit)
    };
    let (parts, commit) = all();
    let mut inbox = PlanInbox::default();
    for part in parts.into_iter().skip(1) {
        inbox.stage(part).unwrap();
    }
    assert_eq!(inbox.commit(&commit), Err(PlanError::Mismatch));
    assert!(inbox.plans().is_empty(), "a part was taken in");
    let (_, commit) = all();
    let wrong = [
        v1::CentrePlanCommit {
            number: 2,
            ..commit.clone()
        },
        v1::CentrePlanCommit {
            listing: false,
            ..commit
        },
    ];
    for commit in wrong {
        let error = PlanInbox::default().commit(&commit).unwrap_err();
        assert!(matches!(error, PlanError::Commit(_)), "{error}");
    }
    let beyond = v1::CentrePlans {
        replace_buckets: vec![1],
        ..v1::CentrePlans::default()
    };
    let error = PlanInbox::default().stage(beyond).unwrap_err();
    assert!(matches!(error, PlanError::Bucket(_)), "{error}");
}

#[test]
fn a_file_that_is_not_whole_is_refused() {
    let mut outbox = filled();
    let (mut inbox, mut all) = (PlanInbox::default(), All::default());
    let stream = outbox.begin(&inbox.plans().bucket_hashes()).unwrap();
    send(&mut outbox, stream, &mut inbox, &mut all);
    let whole = inbox.plans().to_bytes();
    assert!(Plans::from_bytes(whole.clone()).is_ok());
    for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
        assert!(Plans::from_bytes(whole[..cut].into()).is_err(), "{cut}");
    }
    for place in [40, whole.len() / 2, whole.len() - 1] {
        let mut changed = whole.clone();
        changed[place] ^= 1;
        assert!(Plans::from_bytes(changed).is_err(), "{place}");
    }
    let twice = [&whole[..], &whole[..]].concat();
    assert!(Plans::from_bytes(twice).is_err());
}

#[test]
fn a_centre_sends_no_more_bytes_than_an_edge_takes() {
    let mut outbox = PlanOutbox::default();
    let mut long = import(1);
    long.winner = "x".repeat(MAX_PLAN_BYTES - 1_000).into();
    let fitting = MAX_BYTES / (MAX_PLAN_BYTES - 1_000);
    let imports = (0..=fitting).map(|number| (name(&format!("i{number:03}")), Some(long.clone())));
    let changes = PlanChanges {
        imports: imports.collect(),
        ..PlanChanges::default()
    };
    let refused = outbox.apply(&changes, &mut PlanParts::default());
    let [refused] = refused.as_slice() else {
        panic!("not one plan too many: {refused:?}");
    };
    let expected = format!("an edge takes {MAX_BYTES} bytes of all plans");
    assert_eq!(refused.why, expected);
    let stream = outbox.begin(&Plans::default().bucket_hashes()).unwrap();
    let mut inbox = PlanInbox::default();
    let (parts, commit) = outbox
        .take(stream, true)
        .unwrap()
        .into_parts(MAX_PLAN_BYTES);
    for part in parts {
        inbox.stage(part).unwrap();
    }
    inbox.commit(&commit).expect("a commit that an edge takes");
}

#[test]
fn outboxes_share_the_parts_of_equal_plans() {
    let mut parts = PlanParts::default();
    let mut outboxes = [PlanOutbox::default(), PlanOutbox::default()];
    // Equal, and not the same.
    let plans = |size| PlanChanges {
        services: [(export("us-1", "web"), Some(service(size).into()))].into(),
        ..PlanChanges::default()
    };
    let mut sent = |outbox: &mut PlanOutbox, size| {
        assert_eq!(outbox.apply(&plans(size), &mut parts), []);
        let stream = outbox.begin(&Plans::default().bucket_hashes()).unwrap();
        let sent = outbox.take(stream, true).unwrap().put;
        outbox.end(stream);
        (sent, parts.len())
    };
    let [one, other] = &mut outboxes;
    let (first, count) = sent(one, 300);
    let (second, still) = sent(other, 300);
    assert_eq!((first.len(), count), (second.len(), still));
    let is_shared = |(one, other): (&Bytes, &Bytes)| one.as_ptr() == other.as_ptr();
    assert!(first.iter().zip(&second).all(is_shared));
    // Those that nobody has any more are forgotten.
    for round in 0..2_000_u16 {
        sent(one, 1 + round % 300);
    }
    let (_, count) = sent(other, 1);
    assert!(count < 3_000, "{count} parts of 9 at most");
}
