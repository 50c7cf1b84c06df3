// SPDX-License-Identifier: Apache-2.0

//! Initial inputs: messages of both sides, with one of each kind of object, work and plan.

use portolan_catalog::ObjectChange;
use portolan_edge::wire;
use portolan_proto::v1;
use portolan_source::objects::{self, Scope};
use prost::Message as _;
use prost::bytes::Bytes;
use serde_json::json;
use v1::centre_message::Message as Told;
use v1::edge_message::Message as Said;
use v1::plan_item::Plan;
use v1::work_item::Action;

use super::side;
use crate::input::join_bytes;
use crate::seeds::{Seed, objects};

fn edge(message: Said) -> Vec<u8> {
    let message = v1::EdgeMessage {
        message: Some(message),
    };
    [&[side::EDGE], &*message.encode_to_vec()].concat()
}

fn centre(message: Told) -> Vec<u8> {
    let message = v1::CentreMessage {
        message: Some(message),
    };
    [&[side::CENTRE], &*message.encode_to_vec()].concat()
}

fn input(messages: &[Vec<u8>]) -> Vec<u8> {
    let pieces: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
    join_bytes(&pieces)
}

/// The inputs of the target.
#[must_use]
pub fn seeds() -> Vec<Seed> {
    let commit = || edge(Said::Commit(v1::EdgeCommit::default()));
    let planned = || centre(Told::PlanCommit(v1::CentrePlanCommit::default()));
    let asked = || centre(Told::WorkCommit(v1::CentreWorkCommit::default()));
    let all = cluster_objects();
    let first = all.first().and_then(|object| object.id.clone());
    let put = edge(Said::Objects(v1::EdgeObjects {
        put: encoded(&all),
        ..v1::EdgeObjects::default()
    }));
    let delete = edge(Said::Objects(v1::EdgeObjects {
        delete: first.into_iter().collect(),
        replace_buckets: vec![0],
        ..v1::EdgeObjects::default()
    }));
    let wrong = edge(Said::Commit(v1::EdgeCommit {
        hash: vec![1; 16],
        ..v1::EdgeCommit::default()
    }));
    let plans = plans();
    let plan = centre(Told::Plans(v1::CentrePlans {
        put: encoded(&plans),
        ..v1::CentrePlans::default()
    }));
    let unplan = centre(Told::Plans(v1::CentrePlans {
        delete: plans
            .iter()
            .take(1)
            .filter_map(|it| it.id.clone())
            .collect(),
        ..v1::CentrePlans::default()
    }));
    let replan = centre(Told::Plans(v1::CentrePlans {
        put: encoded(plans.get(..2).unwrap_or_default()),
        replace_buckets: vec![0],
        ..v1::CentrePlans::default()
    }));
    let work = centre(Told::Work(v1::CentreWork {
        put: encoded(&work()),
        ..v1::CentreWork::default()
    }));
    vec![
        ("objects", input(&[put.clone(), commit()])),
        ("changes", input(&[put.clone(), commit(), delete, commit()])),
        ("wrong", input(&[put.clone(), wrong, put, commit()])),
        (
            "plans",
            input(&[plan.clone(), planned(), unplan, planned()]),
        ),
        (
            "buckets",
            input(&[plan.clone(), planned(), replan, planned()]),
        ),
        ("work", input(&[work.clone(), asked()])),
        ("both", input(&[plan, work, planned(), asked()])),
    ]
}

fn encoded(messages: &[impl prost::Message]) -> Vec<Bytes> {
    let all = messages
        .iter()
        .map(|message| message.encode_to_vec().into());
    all.collect()
}

fn cluster_objects() -> Vec<v1::ClusterObject> {
    let cluster = "eu-1".into();
    let all = objects().into_iter().filter_map(|value| {
        let kind = match value["kind"].as_str() {
            Some("Service") => portolan_catalog::Kind::Service,
            Some("Node") => portolan_catalog::Kind::Node,
            _ => portolan_catalog::Kind::EndpointSlice,
        };
        match objects::convert(kind, &value, &Scope::new(&cluster)).into_change()? {
            ObjectChange::Put { object, .. } => wire::encode(&object),
            _ => None,
        }
    });
    all.take(24).collect()
}

fn object_id(kind: v1::ObjectKind) -> v1::ObjectId {
    v1::ObjectId {
        kind: kind.into(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
    }
}

fn work() -> Vec<v1::WorkItem> {
    let import = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
        "metadata": { "name": "web", "namespace": "shop", "annotations": { "portolan.dev/winner": "eu-2" } },
        "spec": { "type": "ClusterSetIP", "ips": ["10.112.0.1"], "ports": [{ "port": 80, "protocol": "TCP" }] },
    });
    let create = v1::WorkItem {
        id: Some(object_id(v1::ObjectKind::ServiceImport)),
        action: Some(Action::Create(import.to_string().into_bytes())),
    };
    let status = v1::WorkItem {
        id: Some(object_id(v1::ObjectKind::ServiceExport)),
        action: Some(Action::ApplyStatus(b"{}".to_vec())),
    };
    vec![create, status]
}

fn plan_id(kind: v1::PlanKind) -> v1::PlanId {
    v1::PlanId {
        kind: kind.into(),
        ..v1::PlanId::default()
    }
}

fn named(kind: v1::PlanKind) -> v1::PlanId {
    v1::PlanId {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        ..plan_id(kind)
    }
}

fn import_plan() -> v1::PlanImport {
    let port = v1::EdgePort {
        name: "http".to_owned(),
        protocol: v1::Protocol::Tcp.into(),
        port: 80,
        ..v1::EdgePort::default()
    };
    v1::PlanImport {
        ips: vec![vec![10, 112, 0, 1]],
        winner: "eu-2".to_owned(),
        ports: vec![v1::PlanImportPort {
            port: Some(port),
            clusters: vec!["eu-2".to_owned()],
        }],
        sources: vec![v1::PlanSource {
            cluster: "eu-2".to_owned(),
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        }],
        tiers: vec![v1::PlanTier {
            clusters: vec!["eu-2".to_owned()],
            ..v1::PlanTier::default()
        }],
        min_healthy: Some(v1::plan_import::MinHealthy::MinReadyPercent(70)),
        max_endpoints: 64,
        ..v1::PlanImport::default()
    }
}

fn service_plan() -> v1::PlanService {
    v1::PlanService {
        ports: vec![v1::PlanPort {
            name: "http".to_owned(),
            protocol: v1::Protocol::Tcp.into(),
            port: 80,
            endpoints: vec![v1::PlanEndpoint {
                address: vec![10, 2, 0, 1],
                port: 8080,
                ready: true,
                serving: true,
                weight: 1,
                ..v1::PlanEndpoint::default()
            }],
            ..v1::PlanPort::default()
        }],
        ..v1::PlanService::default()
    }
}

fn plans() -> Vec<v1::PlanItem> {
    let cluster = v1::PlanId {
        cluster: "eu-2".to_owned(),
        ..plan_id(v1::PlanKind::Cluster)
    };
    let of_cluster = v1::PlanCluster {
        id: "eu-2".to_owned(),
        state: Some(v1::PlanState {
            step: 20,
            ..v1::PlanState::default()
        }),
        ..v1::PlanCluster::default()
    };
    let group = v1::PlanId {
        name: "edge".to_owned(),
        ..plan_id(v1::PlanKind::Group)
    };
    let of_group = v1::PlanGroup {
        nodes: br#"{"matchLabels":{"edge":"true"}}"#.to_vec(),
    };
    let service = v1::PlanId {
        cluster: "eu-2".to_owned(),
        ..named(v1::PlanKind::Service)
    };
    let of_gateway = v1::PlanGateway {
        importers: vec!["eu-2".to_owned()],
        ports: vec![v1::PlanGatewayPort {
            name: "http".to_owned(),
            protocol: v1::Protocol::Tcp.into(),
            port: 20_000,
        }],
    };
    let all = [
        (cluster, Plan::Cluster(of_cluster)),
        (group, Plan::Group(of_group)),
        (named(v1::PlanKind::Import), Plan::Import(import_plan())),
        (service, Plan::Service(service_plan())),
        (named(v1::PlanKind::Gateway), Plan::Gateway(of_gateway)),
    ];
    let all = all.map(|(id, plan)| v1::PlanItem {
        id: Some(id),
        plan: Some(plan),
    });
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edge::{Outcome, check};

    fn outcome(name: &str) -> Outcome {
        let seeds = seeds();
        let (_, input) = seeds.iter().find(|(seed, _)| *seed == name).expect(name);
        check(input)
    }

    #[test]
    fn the_seeds_reach_what_they_are_for() {
        let objects = outcome("objects");
        assert!(objects.objects >= 3, "{objects:?}");
        assert_eq!((objects.refused, objects.ended), (0, 0));
        assert_eq!(outcome("changes").ended, 0);
        assert_eq!(outcome("wrong").ended, 1);
        assert_eq!(outcome("wrong").objects, objects.objects);
        let plans = outcome("plans");
        assert_eq!((plans.plans, plans.refused, plans.ended), (4, 0, 0));
        let buckets = outcome("buckets");
        assert_eq!((buckets.plans, buckets.ended), (2, 0));
        let both = outcome("both");
        assert_eq!((both.plans, both.ended), (5, 0));
        assert!(both.writes > 0, "{both:?}");
    }
}
