// SPDX-License-Identifier: Apache-2.0

//! Records of ServiceImports are taken over, and take nothing from other imports.

use portolan_catalog::{ImportSpec, OwnImport, ServiceImport};
use portolan_mcs::{Action, Awaited, Write, WriteKind};

use super::*;

const MINE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 112, 0, 5));
const THEIRS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 112, 0, 9));
const OUTSIDE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// Imports of the cluster `a` with these addresses.
fn importing(ips: &[(&str, IpAddr)]) -> Pipeline {
    let mut pipeline = Pipeline::default();
    pipeline.set_policies(policies("{}", &[]));
    pipeline.set_states(full());
    pipeline.apply(namespace("a"));
    for name in ["web", "api"] {
        pipeline.apply(export("a", name, single()));
    }
    pipeline.flush();
    for (name, ip) in ips {
        pipeline.set_address(import_of(name), vec![*ip]);
    }
    pipeline
}

fn import_of(name: &str) -> ObjectKey {
    key("a", &format!("{name}@clusterset"))
}

/// A ServiceImport with our mark, by whomever it was written.
fn recorded(name: &str, created: Option<i64>, ip: IpAddr) -> ObjectChange {
    let spec = ImportSpec {
        ips: vec![ip],
        families: vec![Family::V4],
        ..ImportSpec::default()
    };
    noted(
        name,
        created,
        OwnImport {
            spec: Some(spec),
            ..OwnImport::default()
        },
    )
}

fn noted(name: &str, created: Option<i64>, own: OwnImport) -> ObjectChange {
    put(Object::ServiceImport(ServiceImport {
        key: key("a", name),
        uid: name.into(),
        generation: 1,
        created,
        own: Some(Box::new(own)),
    }))
}

fn adopt(pipeline: &mut Pipeline, records: impl IntoIterator<Item = ObjectChange>) {
    records
        .into_iter()
        .for_each(|record| pipeline.apply(record));
    pipeline.adopt_imports(&"a".into());
}

fn ips(pipeline: &Pipeline, name: &str) -> Vec<IpAddr> {
    let kept = pipeline.kept().get(&import_of(name));
    kept.map(|kept| kept.ips.clone()).unwrap_or_default()
}

#[test]
fn an_address_that_another_import_has_is_not_taken_over() {
    let mut pipeline = importing(&[("web", THEIRS), ("api", MINE)]);
    // The thief is older, and before the holder by name.
    let records = [
        recorded("web", Some(20), THEIRS),
        recorded("api", Some(10), THEIRS),
    ];
    adopt(&mut pipeline, records);
    assert_eq!(ips(&pipeline, "web"), [THEIRS]);
    assert_eq!(ips(&pipeline, "api"), [MINE]);
    // No import at all, but an object with the mark.
    adopt(&mut pipeline, [recorded("aaa", Some(1), THEIRS)]);
    assert_eq!(ips(&pipeline, "web"), [THEIRS]);
    assert_eq!(ips(&pipeline, "aaa"), [] as [IpAddr; 0]);
}

#[test]
fn of_two_records_of_one_address_the_older_counts_where_none_is_kept() {
    for [web, api] in [[Some(10), Some(20)], [Some(10), None]] {
        let mut pipeline = importing(&[]);
        let records = [recorded("web", web, THEIRS), recorded("api", api, THEIRS)];
        adopt(&mut pipeline, records);
        assert_eq!(ips(&pipeline, "web"), [THEIRS]);
        assert_eq!(ips(&pipeline, "api"), [] as [IpAddr; 0]);
    }
}

#[test]
fn a_record_comes_before_what_this_replica_has_chosen() {
    let mut pipeline = importing(&[("web", MINE), ("api", THEIRS)]);
    adopt(&mut pipeline, [recorded("web", None, THEIRS)]);
    assert_eq!(ips(&pipeline, "web"), [THEIRS]);
    assert_eq!(
        ips(&pipeline, "api"),
        [] as [IpAddr; 0],
        "it is given another one"
    );
    // The replica that allocates has swapped them.
    let mut pipeline = importing(&[("web", MINE), ("api", THEIRS)]);
    let records = [recorded("web", None, THEIRS), recorded("api", None, MINE)];
    adopt(&mut pipeline, records);
    assert_eq!(ips(&pipeline, "web"), [THEIRS]);
    assert_eq!(ips(&pipeline, "api"), [MINE]);
}

#[test]
fn an_address_outside_of_the_ranges_is_not_taken_over() {
    let mut pipeline = importing(&[("web", MINE)]);
    adopt(
        &mut pipeline,
        [
            recorded("web", None, OUTSIDE),
            recorded("api", None, OUTSIDE),
        ],
    );
    assert_eq!(ips(&pipeline, "web"), [MINE]);
    assert_eq!(ips(&pipeline, "api"), [] as [IpAddr; 0]);
}

#[test]
fn a_port_that_another_export_has_is_not_taken_over() {
    let port = |name: &str| portolan_federate::gateway::PortName {
        service: import_name(&import_of(name)).unwrap(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let record = |name: &str, number: u16| {
        let text = format!("http/TCP={number}");
        noted(
            name,
            None,
            OwnImport {
                annotations: [("portolan.dev/gateway-ports".to_owned(), text)].into(),
                ..OwnImport::default()
            },
        )
    };
    let mut pipeline = importing(&[]);
    let before = [(port("web"), 20_009), (port("api"), 20_005)];
    pipeline.set_gateway_ports(&"a".into(), before.clone().into());
    adopt(
        &mut pipeline,
        [record("web", 20_009), record("api", 20_009)],
    );
    assert_eq!(pipeline.gateway_ports()["a"], before.into());
    // What nobody has recorded gives way.
    adopt(&mut pipeline, [record("web", 20_005)]);
    let ports = &pipeline.gateway_ports()["a"];
    assert_eq!(ports.get(&port("web")), Some(&20_005));
}

/// An import of `a` that `a` and `b` export, with what their Services say besides.
fn of_two() -> Pipeline {
    let mut pipeline = importing(&[]);
    let other = ServiceFacts {
        internal_local: true,
        ..single()
    };
    pipeline.apply(namespace("b"));
    pipeline.apply(export("b", "web", other));
    pipeline.flush();
    pipeline
}

/// A record of a winner, and of the clusters that export the Service.
fn recorded_winner(winner: &str) -> ObjectChange {
    let own = OwnImport {
        winner: winner.into(),
        clusters: ["a".into(), "b".into()].into(),
        ..OwnImport::default()
    };
    noted("web", None, own)
}

/// The winner that is kept, and whether the import has the settings of `b`.
fn winner(pipeline: &mut Pipeline) -> (Option<String>, bool) {
    allocate(pipeline);
    pipeline.flush();
    let kept = pipeline.kept().get(&import_of("web"));
    let winner = kept.and_then(|kept| kept.winner.as_deref());
    let writes = pipeline.mcs_writes(&"a".into(), &Awaited::default());
    let of_web = |write: &&Write| {
        let is_import = write.target.kind == WriteKind::ServiceImport;
        is_import && &*write.target.name.name == "web"
    };
    let written = writes.iter().find(of_web).map(|write| &write.action);
    let is_local = match written {
        Some(Action::Create(object) | Action::Apply(object)) => {
            object.to_string().contains("Local")
        }
        _ => panic!("{written:?}"),
    };
    (winner.map(str::to_owned), is_local)
}

#[test]
fn a_replica_that_follows_takes_the_winner_that_was_written() {
    let mut pipeline = of_two();
    assert_eq!(winner(&mut pipeline), (Some("a".to_owned()), false));
    pipeline.apply(recorded_winner("b"));
    pipeline.follow_imports(&"a".into());
    assert!(pipeline.is_dirty());
    assert_eq!(winner(&mut pipeline), (Some("b".to_owned()), true));
}

#[test]
fn a_replica_that_leads_keeps_its_winner() {
    let mut pipeline = of_two();
    adopt(&mut pipeline, [recorded_winner("b")]);
    assert_eq!(winner(&mut pipeline), (Some("a".to_owned()), false));
}

#[test]
fn a_recorded_winner_without_an_export_is_not_taken_over() {
    let mut pipeline = of_two();
    pipeline.apply(recorded_winner("b"));
    pipeline.follow_imports(&"a".into());
    assert_eq!(winner(&mut pipeline).0.as_deref(), Some("b"));
    // A tenant has written it. Without a winner the oldest export would win.
    pipeline.apply(recorded_winner("c"));
    pipeline.follow_imports(&"a".into());
    assert_eq!(winner(&mut pipeline), (Some("b".to_owned()), true));
}
