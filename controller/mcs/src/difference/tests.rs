// SPDX-License-Identifier: Apache-2.0

//! Tests of the writes between what a cluster has and should have.

use portolan_catalog::{Condition, ExportPort, ExportStatus, ImportSpec, OwnImport};
use portolan_model::{Family, Protocol};
use serde_json::Value;

use super::*;
use crate::condition::WantedCondition;
use crate::{Action, at};

fn import_name(name: &str) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "eu-1".into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn wanted_import() -> WantedImport {
    WantedImport {
        winner: "us-1".into(),
        labels: [("a".to_owned(), "1".to_owned())].into(),
        annotations: BTreeMap::new(),
        spec: ImportSpec {
            ports: vec![ExportPort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                app_protocol: None,
            }],
            ips: vec![[10, 112, 0, 1].into()],
            families: vec![Family::V4],
            ..ImportSpec::default()
        },
        clusters: ["us-1".into()].into(),
        conditions: vec![WantedCondition::new("Ready", true, "Ready", "")],
    }
}

/// The conditions as a cluster has them, for a generation and since a time.
fn as_found(conditions: &[WantedCondition], generation: i64) -> Vec<Condition> {
    let found = conditions.iter().map(|condition| Condition {
        kind: condition.kind.into(),
        status: condition.status().into(),
        reason: condition.reason.as_str().into(),
        message: condition.message.as_str().into(),
        generation,
        since: "2026-01-01T00:00:00Z".into(),
    });
    found.collect()
}

/// The import as a cluster has it once everything is written.
fn found(name: &str, wanted: &WantedImport) -> ServiceImport {
    ServiceImport {
        key: key(name),
        uid: "u".into(),
        generation: 3,
        created: None,
        own: Some(Box::new(OwnImport {
            winner: Arc::clone(&wanted.winner),
            labels: wanted.labels.clone(),
            annotations: wanted.annotations.clone(),
            spec: Some(wanted.spec.clone()),
            clusters: wanted.clusters.clone(),
            conditions: as_found(&wanted.conditions, 3),
        })),
    }
}

fn wanted(names: &[&str]) -> Wanted {
    let imports = names
        .iter()
        .map(|name| (import_name(name), wanted_import()));
    Wanted {
        imports: imports.collect(),
        exports: BTreeMap::new(),
    }
}

fn awaiting(ids: &[&str]) -> Awaited {
    Awaited {
        ids: ids.iter().map(|id| Arc::from(*id)).collect(),
        ..Awaited::default()
    }
}

/// The same members, which export a Service that others export too.
fn awaiting_export(ids: &[&str], service: &str) -> Awaited {
    Awaited {
        exports: [import_name(service)].into(),
        ..awaiting(ids)
    }
}

/// The writes, as `VERB NAME`.
fn told(wanted: &Wanted, imports: &[ServiceImport], awaited: &Awaited) -> Vec<String> {
    let observed = Observed::new(imports.iter(), std::iter::empty());
    let all = writes(wanted, &observed, awaited).into_iter();
    all.map(|write| format!("{} {}", write.action.verb(), write.target.name.name))
        .collect()
}

#[test]
fn an_import_is_created_applied_and_then_left_alone() {
    let nobody = Awaited::default();
    assert_eq!(told(&wanted(&["web"]), &[], &nobody), ["create web"]);
    let complete = found("web", &wanted_import());
    assert_eq!(
        told(&wanted(&["web"]), std::slice::from_ref(&complete), &nobody),
        [""; 0]
    );
    let edit = |edit: fn(&mut OwnImport)| {
        let mut other = complete.clone();
        edit(other.own.as_mut().unwrap());
        told(&wanted(&["web"]), &[other], &nobody)
    };
    assert_eq!(edit(|own| own.spec = None), ["apply web"]);
    assert_eq!(edit(|own| own.labels.clear()), ["apply web"]);
    assert_eq!(edit(|own| own.winner = "eu-1".into()), ["apply web"]);
    assert_eq!(edit(|own| own.clusters.clear()), ["apply status web"]);
    assert_eq!(
        edit(|own| own.conditions[0].generation = 2),
        ["apply status web"]
    );
    assert_eq!(told(&wanted(&[]), &[complete], &nobody), ["delete web"]);
}

#[test]
fn the_condition_of_partial_affinity_ends_where_it_was_written() {
    let nobody = Awaited::default();
    let mut partial = wanted(&["web"]);
    let clusters: Vec<Arc<str>> = (1..11).map(|number| format!("c{number}").into()).collect();
    partial.affinity_partial(&import_name("web"), &clusters);
    let condition = partial.imports[&import_name("web")].conditions[1].clone();
    assert_eq!(
        (condition.kind, condition.status),
        ("AffinityPartial", true)
    );
    assert!(
        condition
            .message
            .contains("c1, c2, c3, c4, c5, c6, c7, c8 and 2 more"),
        "{}",
        condition.message
    );
    let before = found("web", &wanted_import());
    assert_eq!(told(&partial, &[before], &nobody), ["apply status web"]);
    let after = found("web", &partial.imports[&import_name("web")]);
    assert_eq!(
        told(&partial, std::slice::from_ref(&after), &nobody),
        [""; 0]
    );
    // Nobody may take away the condition of another manager, so it becomes false.
    let observed = Observed::new(std::iter::once(&after), std::iter::empty());
    let writes = writes(&wanted(&["web"]), &observed, &nobody);
    let [
        Write {
            action: Action::ApplyStatus(object),
            ..
        },
    ] = &writes[..]
    else {
        panic!("{writes:?}");
    };
    let ended = &object["status"]["conditions"][1];
    assert_eq!(ended["type"], "AffinityPartial");
    assert_eq!(
        (&ended["status"], &ended["reason"]),
        (&"False".into(), &"NotPartial".into())
    );
    let mut over = wanted_import();
    over.conditions.push(WantedCondition::new(
        "AffinityPartial",
        false,
        "NotPartial",
        "",
    ));
    let over = found("web", &over);
    assert_eq!(told(&wanted(&["web"]), &[over], &nobody), [""; 0]);
}

#[test]
fn what_somebody_else_wrote_stays() {
    let foreign = ServiceImport {
        own: None,
        ..found("web", &wanted_import())
    };
    for wanted in [wanted(&["web"]), wanted(&[])] {
        let told = told(&wanted, std::slice::from_ref(&foreign), &Awaited::default());
        assert_eq!(told, [""; 0]);
    }
}

#[test]
fn imports_of_members_that_are_awaited_stay() {
    let complete = found("web", &wanted_import());
    let mut other = complete.clone();
    other.own.as_mut().unwrap().spec = None;
    for import in [complete, other] {
        for wanted in [wanted(&["web"]), wanted(&[])] {
            let told = told(&wanted, std::slice::from_ref(&import), &awaiting(&["us-1"]));
            assert_eq!(told, [""; 0]);
        }
    }
    // Those of others do not.
    let gone = found("web", &wanted_import());
    assert_eq!(
        told(&wanted(&[]), &[gone], &awaiting(&["ap-1"])),
        ["delete web"]
    );
    let mut unknown = found("web", &wanted_import());
    unknown.own.as_mut().unwrap().clusters.clear();
    assert_eq!(
        told(&wanted(&[]), &[unknown], &awaiting(&["ap-1"])),
        [""; 0]
    );
}

#[test]
fn a_name_that_is_none_becomes_part_of_no_path() {
    for name in ["../../secrets", "a/b", "", "A", "a?b"] {
        assert_eq!(
            told(&wanted(&[name]), &[], &Awaited::default()),
            [""; 0],
            "{name:?}"
        );
        let found = found(name, &wanted_import());
        assert_eq!(
            told(&wanted(&[]), &[found], &Awaited::default()),
            [""; 0],
            "{name:?}"
        );
    }
}

#[test]
fn conditions_keep_the_time_of_their_last_transition() {
    let conditions = |conflict: bool| {
        let reason = if conflict {
            "PortConflict"
        } else {
            "NoConflicts"
        };
        vec![
            WantedCondition::new("Valid", true, "Valid", ""),
            WantedCondition::new("Conflict", conflict, reason, ""),
        ]
    };
    let export = ServiceExport {
        requested: true,
        status: ExportStatus {
            generation: 2,
            conditions: as_found(&conditions(false), 1),
        },
        ..ServiceExport::new(key("web"))
    };
    let wanted = |conflict| Wanted {
        imports: BTreeMap::new(),
        exports: [(import_name("web"), conditions(conflict))].into(),
    };
    let all = |export: &ServiceExport, conflict, awaited: &Awaited| {
        let observed = Observed::new(std::iter::empty(), std::iter::once(export));
        writes(&wanted(conflict), &observed, awaited)
    };
    // Another generation is a write, without a transition.
    let writes = all(&export, true, &Awaited::default());
    let [
        Write {
            action: Action::ApplyStatus(object),
            ..
        },
    ] = &writes[..]
    else {
        panic!("{writes:?}");
    };
    let object = at(object, "2026-02-02T00:00:00Z");
    let condition = |index: usize| object["status"]["conditions"][index].clone();
    assert_eq!(condition(0)["lastTransitionTime"], "2026-01-01T00:00:00Z");
    assert_eq!(condition(0)["observedGeneration"], 2);
    assert_eq!(condition(1)["lastTransitionTime"], "2026-02-02T00:00:00Z");
    assert_eq!(condition(1)["reason"], Value::from("PortConflict"));
    // What was said about conflicts stays while members are awaited, and something is said at once.
    let awaited = awaiting_export(&["us-1"], "web");
    let said = ServiceExport {
        status: ExportStatus {
            generation: 2,
            conditions: as_found(&conditions(false), 2),
        },
        ..export.clone()
    };
    assert_eq!(all(&said, true, &awaited), []);
    let fresh = ServiceExport {
        status: ExportStatus::default(),
        ..export.clone()
    };
    assert_eq!(all(&fresh, true, &awaited).len(), 1);
    let unrequested = ServiceExport {
        requested: false,
        ..export
    };
    assert_eq!(all(&unrequested, true, &Awaited::default()), []);
}

#[test]
fn a_member_that_is_awaited_holds_up_only_what_is_said_about_conflicts_with_it() {
    let conditions = |is_valid, conflict: &str| {
        let has_conflict = conflict != "NoConflicts";
        vec![
            WantedCondition::new("Valid", is_valid, "", ""),
            WantedCondition::new("Conflict", has_conflict, conflict, ""),
        ]
    };
    let before = ServiceExport {
        requested: true,
        status: ExportStatus {
            generation: 1,
            conditions: as_found(&conditions(false, "PortConflict"), 1),
        },
        ..ServiceExport::new(key("web"))
    };
    let wanted = Wanted {
        imports: BTreeMap::new(),
        exports: [(import_name("web"), conditions(true, "NoConflicts"))].into(),
    };
    let told = |awaited: &Awaited| {
        let observed = Observed::new(std::iter::empty(), std::iter::once(&before));
        let writes = writes(&wanted, &observed, awaited);
        let [
            Write {
                action: Action::ApplyStatus(object),
                ..
            },
        ] = &writes[..]
        else {
            panic!("{writes:?}");
        };
        let conditions = &object["status"]["conditions"];
        [
            conditions[0]["status"].clone(),
            conditions[1]["reason"].clone(),
        ]
    };
    let settled = ["True", "NoConflicts"].map(Value::from);
    assert_eq!(told(&Awaited::default()), settled);
    assert_eq!(told(&awaiting(&["us-1"])), settled);
    assert_eq!(told(&awaiting_export(&["us-1"], "api")), settled);
    let kept = ["True", "PortConflict"].map(Value::from);
    assert_eq!(told(&awaiting_export(&["us-1"], "web")), kept);
}

#[test]
fn writes_of_one_kind_crowd_out_no_others() {
    let names: Vec<String> = (0..2000).map(|number| format!("s{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (stale, news) = names.split_at(1000);
    let wanted = wanted(news);
    let stale = stale.iter().map(|name| found(name, &wanted_import()));
    let stale: Vec<_> = stale.collect();
    let exports = names.iter().map(|name| ServiceExport {
        requested: true,
        ..ServiceExport::new(key(name))
    });
    let exports: Vec<_> = exports.collect();
    let mut wanted = wanted;
    wanted.exports = names
        .iter()
        .map(|name| {
            (
                import_name(name),
                vec![WantedCondition::new("Valid", true, "Valid", "")],
            )
        })
        .collect();
    let observed = Observed::new(stale.iter(), exports.iter());
    let all = writes(&wanted, &observed, &Awaited::default());
    let count = |is_it: &dyn Fn(&Write) -> bool| all.iter().filter(|write| is_it(write)).count();
    let statuses = count(&|write| write.target.kind == WriteKind::ServiceExport);
    let deletions = count(&|write| matches!(write.action, Action::Delete { .. }));
    let creations = count(&|write| matches!(write.action, Action::Create(_)));
    assert_eq!([statuses, deletions, creations], [333; 3]);
    // An edge is sent no more.
    assert!(all.len() <= 1000);
}
