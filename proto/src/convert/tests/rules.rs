// SPDX-License-Identifier: Apache-2.0

use super::*;

fn valid() -> v1::Record {
    v1::Record {
        key: Some(v1::RecordKey {
            namespace: "ns".to_owned(),
            service: "svc".to_owned(),
            port: String::new(),
            protocol: v1::Protocol::Tcp.into(),
        }),
        hash: vec![0; 16],
        frontends: vec![valid_frontend()],
        destinations: Some(v1::Destinations {
            v4: vec![1, 2],
            v6: vec![0; 16],
            ports: vec![80],
            weights: vec![1, 2, 3],
        }),
        zones: vec!["a".to_owned(), "b".to_owned()],
        zone_masks: vec![1, 2, 3],
        affinity_seconds: 86_400,
        available: vec![1, 2],
        scheduler: "lc".to_owned(),
        scheduler_flags: Some(8),
        drain_seconds: Some(0),
        health_check_port: 30_000,
        node_group: String::new(),
        balancing: Vec::new(),
    }
}

fn valid_frontend() -> v1::Frontend {
    v1::Frontend {
        kind: v1::frontend::Kind::ClusterIp.into(),
        address: Some(v1::frontend::Address::V6(vec![1; 16])),
        port: 80,
        lists: v1::frontend::Lists::Cluster.into(),
        masquerade: true,
        source_ranges: vec![v1::Network {
            network: Some(v1::network::Network::V6(vec![1; 16])),
            prefix_length: 128,
        }],
        unbound: true,
        ranges: vec![],
    }
}

fn columns(record: &mut v1::Record) -> &mut v1::Destinations {
    record.destinations.as_mut().unwrap()
}

#[test]
fn a_record_that_breaks_a_rule_is_refused_with_the_fields_name() {
    type Break = fn(&mut v1::Record);
    let cases: [(&str, Break); 25] = [
        ("key", |r| r.key = None),
        ("key.protocol", |r| r.key.as_mut().unwrap().protocol = 0),
        ("key.protocol", |r| r.key.as_mut().unwrap().protocol = 9),
        ("hash", |r| r.hash.truncate(15)),
        ("hash", |r| r.hash.clear()),
        ("frontends.port", |r| r.frontends[0].port = 0),
        ("frontends.port", |r| r.frontends[0].port = 65_536),
        ("frontends.v6", |r| {
            r.frontends[0].address = Some(v1::frontend::Address::V6(vec![1; 15]));
        }),
        ("frontends.source_ranges", |r| {
            let range = &mut r.frontends[0].source_ranges[0];
            (range.network, range.prefix_length) = (Some(v1::network::Network::V4(1)), 32);
        }),
        ("frontends.source_ranges", |r| {
            let range = &mut r.frontends[0].source_ranges[0];
            *range = v1::Network {
                network: Some(v1::network::Network::V6(vec![0; 16])),
                prefix_length: 0,
            };
        }),
        ("network.v6", |r| {
            r.frontends[0].source_ranges[0].network = Some(v1::network::Network::V6(vec![1; 17]));
        }),
        ("network.prefix_length", |r| {
            r.frontends[0].source_ranges[0].prefix_length = 129;
        }),
        ("destinations", |r| columns(r).v4.reverse()),
        ("destinations", |r| columns(r).v4 = vec![2, 2]),
        ("destinations.v6", |r| columns(r).v6.truncate(15)),
        ("destinations.ports", |r| columns(r).ports.clear()),
        ("destinations.ports", |r| columns(r).ports = vec![80, 80]),
        ("destinations.ports", |r| columns(r).ports = vec![0]),
        ("destinations.weights", |r| columns(r).weights.truncate(2)),
        ("zone_masks", |r| r.zone_masks.truncate(2)),
        ("zones", |r| r.zones.reverse()),
        ("affinity_seconds", |r| r.affinity_seconds = 86_401),
        ("scheduler", |r| r.scheduler = "a".repeat(16)),
        ("health_check_port", |r| r.health_check_port = 65_536),
        ("node_group", |r| r.node_group = "g".repeat(513)),
    ];
    decode_record(&valid(), &cluster()).unwrap();
    for (index, (field, change)) in cases.into_iter().enumerate() {
        let mut record = valid();
        change(&mut record);
        let error = decode_record(&record, &cluster()).unwrap_err();
        assert_eq!(error.field, field, "case {index}");
        assert!(error.to_string().starts_with(&format!("{field}: ")));
    }
}

#[test]
fn too_many_zones_are_refused() {
    let mut record = valid();
    record.zones = (0..65).map(|zone| format!("{zone:02}")).collect();
    let error = decode_record(&record, &cluster()).unwrap_err();
    assert_eq!(error.field, "zones");
    record.zones.pop();
    decode_record(&record, &cluster()).unwrap();
}

#[test]
fn a_frontend_with_something_unknown_is_left_out_and_the_rest_applies() {
    type Change = fn(&mut v1::Frontend);
    let cases: [(&str, Change); 7] = [
        ("unknown kind 0", |f| f.kind = 0),
        ("unknown kind 9", |f| f.kind = 9),
        ("unknown lists 3", |f| f.lists = 3),
        ("unknown address", |f| f.address = None),
        ("unknown address", |f| {
            f.address = Some(v1::frontend::Address::NodeAddresses(3));
        }),
        ("unknown source range", |f| {
            f.source_ranges[0].network = None
        }),
        // A newer kind may well have no port.
        ("unknown kind 9", |f| (f.kind, f.port) = (9, 0)),
    ];
    for (why, change) in cases {
        let mut record = valid();
        let mut frontend = valid_frontend();
        change(&mut frontend);
        record.frontends.push(frontend);
        let decoded = decode_record(&record, &cluster()).unwrap();
        assert_eq!(decoded.record.frontends.len(), 1);
        assert_eq!(decoded.left_out, [format!("frontend 1 left out: {why}")]);
    }
}

#[test]
fn a_canonical_record_is_encoded_as_it_came() {
    let decoded = decode_record(&valid(), &cluster()).unwrap();
    assert_eq!(encode_record(&decoded.record, decoded.hash), valid());
}

#[test]
fn lists_that_break_a_rule_are_refused() {
    let key = valid().key;
    let bad = Some(v1::Destinations {
        ports: vec![80],
        ..v1::Destinations::default()
    });
    let good = v1::NodeLists {
        key,
        hash: vec![0; 16],
        ..v1::NodeLists::default()
    };
    assert!(decode_lists(&good, &cluster()).is_ok());
    let cases: [fn(&mut v1::NodeLists, Option<v1::Destinations>); 5] = [
        |lists, bad| lists.cluster = bad,
        |lists, bad| lists.local = bad,
        |lists, bad| lists.own = bad,
        |lists, _| lists.key = None,
        |lists, _| lists.hash = vec![0; 20],
    ];
    for change in cases {
        let mut lists = good.clone();
        change(&mut lists, bad.clone());
        decode_lists(&lists, &cluster()).unwrap_err();
    }
}

#[test]
fn ranges_are_those_of_their_kind_and_in_order() {
    let ranges = |kind: v1::frontend::Kind, ranges: &[(u32, u32)]| {
        let range = |(first, last): &(u32, u32)| v1::PortRange {
            first: *first,
            last: *last,
        };
        let from = v1::Frontend {
            kind: kind.into(),
            port: 0,
            ranges: ranges.iter().map(range).collect(),
            ..valid_frontend()
        };
        let decoded = super::super::frontend::decode_frontend(&from);
        decoded.map(drop).map_err(|error| error.to_string())
    };
    let ranged = v1::frontend::Kind::BalancedRanges;
    assert_eq!(ranges(ranged, &[(21, 21), (2000, 2010)]), Ok(()));
    assert_eq!(ranges(v1::frontend::Kind::Balanced, &[]), Ok(()));
    for (kind, given) in [
        (ranged, &[][..]),
        (ranged, &[(0, 5)]),
        (ranged, &[(5, 4)]),
        (ranged, &[(5, 70_000)]),
        (ranged, &[(5, 9), (9, 10)]),
        (ranged, &[(20, 21), (5, 6)]),
        (v1::frontend::Kind::Balanced, &[(5, 6)]),
    ] {
        let error = ranges(kind, given).unwrap_err();
        assert!(
            error.starts_with("frontends.ranges: "),
            "{given:?}: {error}"
        );
    }
}
