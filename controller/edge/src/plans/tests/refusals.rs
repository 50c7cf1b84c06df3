// SPDX-License-Identifier: Apache-2.0

//! Plans that break a rule, and more than an edge takes.

use std::net::IpAddr;

use super::*;
use crate::ledger::HASHED;

fn put(item: &v1::PlanItem) -> v1::CentrePlans {
    v1::CentrePlans {
        put: vec![item.encode_to_vec().into()],
        ..v1::CentrePlans::default()
    }
}

/// The message of the import "web".
fn import_message(change: impl FnOnce(&mut v1::PlanImport)) -> v1::PlanItem {
    let id = encode::id(&PlanName::Import(name("web")));
    let v1::plan_item::Plan::Import(mut message) = encode::import(&import(1)) else {
        panic!("no import");
    };
    change(&mut message);
    v1::PlanItem {
        id: Some(id),
        plan: Some(v1::plan_item::Plan::Import(message)),
    }
}

fn service_message(change: impl FnOnce(&mut v1::PlanPort)) -> v1::PlanItem {
    let id = encode::id(&PlanName::Service(export("us-1", "web")));
    let mut parts = encode::service(&service(2));
    let v1::plan_item::Plan::Service(mut message) = parts.remove(0) else {
        panic!("no Service");
    };
    change(&mut message.ports[0]);
    v1::PlanItem {
        id: Some(id),
        plan: Some(v1::plan_item::Plan::Service(message)),
    }
}

/// Imports that break a rule, with the field that is named.
fn bad_imports() -> Vec<(v1::PlanItem, &'static str)> {
    vec![
        (import_message(|import| import.ips = vec![]), "import.ips"),
        (
            import_message(|import| import.ips = vec![vec![10, 0, 0, 1], vec![10, 0, 0, 2]]),
            "import.ips",
        ),
        (
            import_message(|import| import.ips = vec![vec![1, 2, 3]]),
            "import.ips",
        ),
        (
            import_message(|import| import.winner = String::new()),
            "import.winner",
        ),
        (
            import_message(|import| import.ports[0].port = None),
            "import.ports.port",
        ),
        (
            import_message(|import| import.affinity_seconds = Some(0)),
            "affinity_seconds",
        ),
        (
            import_message(|import| import.min_healthy = None),
            "import.min_healthy",
        ),
        (
            import_message(|import| import.panic_threshold = 101),
            "import.panic_threshold",
        ),
        (
            import_message(|import| import.max_endpoints = 0),
            "import.max_endpoints",
        ),
        (
            import_message(|import| import.tiers = vec![v1::PlanTier::default(); 10]),
            "import.tiers",
        ),
        (
            import_message(|import| import.tiers[1].weights = vec![1]),
            "import.tiers.weights",
        ),
        (
            import_message(|import| import.tiers[1].weights = vec![1, 1_001]),
            "import.tiers.weights",
        ),
        (
            import_message(|import| import.policy_scheduler = "none".into()),
            "import.policy_scheduler",
        ),
        (
            import_message(|import| import.scheduler = "x".repeat(16)),
            "import.scheduler",
        ),
        (
            import_message(|import| import.sources[0].cluster = "x".repeat(254)),
            "import.sources.cluster",
        ),
    ]
}

/// Services that break a rule, and a plan without a value.
fn other_bad_plans() -> Vec<(v1::PlanItem, &'static str)> {
    let endpoint =
        |change: fn(&mut v1::PlanEndpoint)| service_message(|port| change(&mut port.endpoints[0]));
    vec![
        (
            endpoint(|endpoint| endpoint.address = vec![127, 0, 0, 1]),
            "service.ports.endpoints",
        ),
        (
            endpoint(|endpoint| endpoint.port = 0),
            "service.ports.endpoints",
        ),
        (
            endpoint(|endpoint| endpoint.weight = u32::MAX),
            "service.ports.endpoints.weight",
        ),
        (
            service_message(|port| port.gateways[0].address = vec![169, 254, 169, 254]),
            "service.ports.gateways",
        ),
        (
            v1::PlanItem {
                plan: None,
                ..import_message(|_| {})
            },
            "plan",
        ),
    ]
}

#[test]
fn what_breaks_a_rule_is_refused_by_its_field() {
    for (item, field) in bad_imports().into_iter().chain(other_bad_plans()) {
        let mut inbox = PlanInbox::default();
        let good = import_message(|import| import.max_endpoints = 9);
        let other = PlanName::Import(name("other"));
        let good = v1::PlanItem {
            id: Some(encode::id(&other)),
            ..good
        };
        assert_eq!(inbox.stage(put(&good)).unwrap(), []);
        let refused = inbox.stage(put(&item)).unwrap();
        assert_eq!(refused.len(), 1, "{item:?}");
        let said = refused[0].to_string();
        assert_eq!(refused[0].error.field, field, "{said}");
        assert!(
            said.contains("us-1/shop/web") || said.contains("/shop/web"),
            "{said}"
        );
        // The others go on.
        let changes = commit(&mut inbox, true, &[&good, &item]);
        assert!(changes.imports[&name("other")].is_some());
        assert_eq!(changes.imports.get(&name("web")).cloned().flatten(), None);
    }
}

/// Commits with the hash of these items.
fn commit(inbox: &mut PlanInbox, listing: bool, items: &[&v1::PlanItem]) -> PlanChanges {
    let mut total = portolan_model::SetHash::default();
    for item in items {
        let bytes = Bytes::from(item.encode_to_vec());
        total.insert(crate::ledger::Entry::keyed(PLAN_KEY, bytes, 0).hash);
    }
    let commit = v1::CentrePlanCommit {
        number: if listing { 1 } else { 2 },
        listing,
        leading: true,
        hash: total.to_bytes().into(),
    };
    inbox.commit(&commit).unwrap()
}

#[test]
fn the_last_good_version_of_a_refused_plan_stays() {
    let mut inbox = PlanInbox::default();
    let good = import_message(|_| {});
    inbox.stage(put(&good)).unwrap();
    let first = commit(&mut inbox, true, &[&good]);
    let bad = import_message(|import| import.max_endpoints = 0);
    assert_eq!(inbox.stage(put(&bad)).unwrap().len(), 1);
    let second = commit(&mut inbox, false, &[&bad]);
    assert_eq!(first.imports, second.imports);
    assert_eq!(second.imports[&name("web")], Some(import(1)));
    // After a start of the edge too, also the second one, and until another good version comes.
    let hashes = inbox.plans().bucket_hashes();
    let mut plans = inbox.into_plans();
    for _ in 0..2 {
        let (saved, refused) = Plans::from_bytes(plans.to_bytes()).unwrap();
        assert_eq!(refused.len(), 1);
        assert_eq!(saved.bucket_hashes(), hashes);
        let all = saved.since(&Plans::default());
        assert_eq!(all.imports, second.imports);
        plans = saved;
    }
    let mut inbox = PlanInbox::new(plans);
    let next = import_message(|import| import.max_endpoints = 9);
    inbox.stage(put(&next)).unwrap();
    let third = commit(&mut inbox, true, &[&next]);
    assert_ne!(third.imports, second.imports);
    let (saved, refused) = Plans::from_bytes(inbox.plans().to_bytes()).unwrap();
    assert_eq!(refused, []);
    assert_eq!(saved.since(&Plans::default()).imports, third.imports);
}

#[test]
fn a_transition_without_a_listing_hashes_no_id() {
    let mut inbox = PlanInbox::default();
    let first = import_message(|_| {});
    inbox.stage(put(&first)).unwrap();
    commit(&mut inbox, true, &[&first]);
    let next = import_message(|import| import.max_endpoints = 9);
    inbox.stage(put(&next)).unwrap();
    let before = HASHED.get();
    commit(&mut inbox, false, &[&next]);
    assert_eq!(HASHED.get(), before);
}

/// A Service with as many ports as an export has, and 1,000 addresses behind each.
fn wide() -> ServicePlan {
    let endpoint = PlanEndpoint {
        ready: true,
        serving: true,
        terminating: false,
        weight: 1,
        zone: None,
    };
    let ports = (1..=256_u16).map(|number| {
        let port = PlanPort {
            name: format!("port-of-a-wide-service-{number}").into(),
            protocol: Protocol::Tcp,
            number,
        };
        let all = (0..1_000_u16).map(|index| {
            let [high, low] = index.to_be_bytes();
            (([10, 1, high, low], number).into(), endpoint.clone())
        });
        let plan = PortPlan {
            endpoints: all.collect(),
            gateways: BTreeMap::new(),
        };
        (port, plan)
    });
    ServicePlan {
        by_gateways: false,
        ports: ports.collect(),
    }
}

/// A change of the Service `web` of another cluster.
fn of_web(plan: Option<Arc<ServicePlan>>) -> PlanChanges {
    PlanChanges {
        services: [(export("us-1", "web"), plan)].into(),
        ..PlanChanges::default()
    }
}

#[test]
fn many_ports_are_not_in_each_of_many_parts() {
    let (mut outbox, plan) = (PlanOutbox::default(), Arc::new(wide()));
    let changes = of_web(Some(Arc::clone(&plan)));
    assert_eq!(outbox.apply(&changes, &mut PlanParts::default()), []);
    let mut inbox = PlanInbox::default();
    let stream = outbox.begin(&inbox.plans().bucket_hashes()).unwrap();
    let transition = outbox.take(stream, true).unwrap();
    let bytes: usize = transition.put.iter().map(Bytes::len).sum();
    assert!(bytes < 20_000_000, "{bytes} bytes");
    let (parts, commit) = transition.into_parts(MAX_PLAN_BYTES);
    for part in parts {
        assert_eq!(inbox.stage(part).unwrap(), []);
    }
    let arrived = inbox.commit(&commit).unwrap();
    let arrived = arrived.services.into_values().next().flatten();
    // Not with both plans in words.
    assert!(arrived == Some(plan), "another plan");
}

#[test]
fn a_service_with_a_part_that_was_refused_goes_as_a_whole() {
    let mut plan = service(300);
    let parts = encode::service(&plan);
    let v1::plan_item::Plan::Service(middle) = &parts[1] else {
        panic!("no Service");
    };
    let octets = middle.ports[0].endpoints[0].address.clone();
    let ip = IpAddr::from(<[u8; 4]>::try_from(octets).unwrap());
    for port in plan.ports.values_mut() {
        for (address, endpoint) in &mut port.endpoints {
            if address.ip() == ip {
                endpoint.zone = Some("x".repeat(MAX_PLAN_BYTES).into());
            }
        }
    }
    let (mut outbox, mut known) = (PlanOutbox::default(), PlanParts::default());
    let refused = outbox.apply(&of_web(Some(plan.into())), &mut known);
    assert_eq!(refused.len(), 1);
    let (mut inbox, mut all) = (PlanInbox::default(), All::default());
    let stream = outbox.begin(&inbox.plans().bucket_hashes()).unwrap();
    let put = send(&mut outbox, stream, &mut inbox, &mut all);
    assert_eq!(put, parts.len() - 1, "the others are served");
    assert!(put > 2, "no part after the one that was refused");
    assert_eq!(outbox.apply(&of_web(None), &mut known), []);
    send(&mut outbox, stream, &mut inbox, &mut all);
    assert_eq!(inbox.plans().len(), 0, "parts are left");
    assert_eq!(all, All::default());
}

#[test]
fn what_a_centre_may_stage_is_bounded() {
    let large = import_message(|import| import.winner = "x".repeat(MAX_PLAN_BYTES));
    let error = PlanInbox::default().stage(put(&large)).unwrap_err();
    assert!(matches!(error, PlanError::TooMany { .. }), "{error}");
    let nameless = v1::PlanItem::default();
    let error = PlanInbox::default().stage(put(&nameless)).unwrap_err();
    assert!(matches!(error, PlanError::Item(_)), "{error}");
    let deleted = |number| v1::PlanId {
        name: format!("i{number}"),
        ..encode::id(&PlanName::Import(name("web")))
    };
    let many = v1::CentrePlans {
        delete: (0..=MAX_PLANS).map(deleted).collect(),
        ..v1::CentrePlans::default()
    };
    let error = PlanInbox::default().stage(many).unwrap_err();
    assert!(error.to_string().contains("plans"), "{error}");
    // Nor does one plan sent again and again grow without end.
    let mut inbox = PlanInbox::default();
    let long = import_message(|import| import.winner = "x".repeat(MAX_PLAN_BYTES - 1_000));
    let ended = (0..MAX_BYTES / MAX_PLAN_BYTES + 2).find_map(|_| inbox.stage(put(&long)).err());
    let error = ended.expect("a bound").to_string();
    assert!(error.contains("before a commit"), "{error}");
    // A centre leaves out what an edge would not take.
    let mut outbox = PlanOutbox::default();
    let mut huge = import(1);
    huge.winner = "x".repeat(MAX_PLAN_BYTES).into();
    let changes = PlanChanges {
        imports: [(name("huge"), Some(huge)), (name("web"), Some(import(1)))].into(),
        ..PlanChanges::default()
    };
    let refused = outbox.apply(&changes, &mut PlanParts::default());
    assert_eq!(refused.len(), 1);
    assert!(
        refused[0].to_string().contains("shop/huge"),
        "{}",
        refused[0]
    );
    let stream = outbox.begin(&Plans::default().bucket_hashes()).unwrap();
    assert_eq!(outbox.take(stream, true).unwrap().put.len(), 1);
}

#[test]
fn a_plan_that_was_refused_is_sent_once_others_have_made_room() {
    let mut long = import(1);
    long.winner = "x".repeat(MAX_PLAN_BYTES - 1_000).into();
    let changes = |imports: &[(&str, bool)]| {
        let imports = imports.iter();
        let imports = imports.map(|(of, is_there)| (name(of), is_there.then(|| long.clone())));
        PlanChanges {
            imports: imports.collect(),
            ..PlanChanges::default()
        }
    };
    let fitting = MAX_BYTES / (MAX_PLAN_BYTES - 1_000);
    let names: Vec<String> = (0..fitting).map(|number| format!("i{number:03}")).collect();
    let full: Vec<(&str, bool)> = names.iter().map(|one| (one.as_str(), true)).collect();
    let (mut outbox, mut known) = (PlanOutbox::default(), PlanParts::default());
    let mut refused = |outbox: &mut PlanOutbox, imports: &[(&str, bool)]| {
        outbox.apply(&changes(imports), &mut known).len()
    };
    assert_eq!(refused(&mut outbox, &full), 0);
    let stream = outbox.begin(&Plans::default().bucket_hashes()).unwrap();
    let sent = |outbox: &mut PlanOutbox| {
        let sent = outbox.take(stream, true)?;
        Some((sent.put.len(), sent.delete.len()))
    };
    assert_eq!(sent(&mut outbox), Some((fitting, 0)));
    assert_eq!(refused(&mut outbox, &[("new", true)]), 1);
    assert_eq!(sent(&mut outbox), None);
    assert_eq!(refused(&mut outbox, &[("i000", false)]), 0);
    assert_eq!(sent(&mut outbox), Some((1, 1)));
    // The one that comes is looked at before the one that goes.
    assert_eq!(refused(&mut outbox, &[("a", true), ("i001", false)]), 0);
    assert_eq!(sent(&mut outbox), Some((1, 1)));
    // Nor is one sent later that has gone before it fitted.
    assert_eq!(refused(&mut outbox, &[("b", true)]), 1);
    assert_eq!(refused(&mut outbox, &[("b", false)]), 0);
    assert_eq!(refused(&mut outbox, &[("i002", false)]), 0);
    assert_eq!(sent(&mut outbox), Some((0, 1)));
}
