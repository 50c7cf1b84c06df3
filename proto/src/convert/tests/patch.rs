// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Two records that differ in their destinations, weights and masks alone, and overlap.
fn pair() -> impl Strategy<Value = (Record, Record)> {
    let rows = vec((any::<(bool, bool)>(), 0..3_u32, any::<(u64, bool)>()), 16);
    (record(), rows, addresses()).prop_map(|(base, rows, more)| {
        let mut universe: Vec<SocketAddr> = (0..8_u8).map(|i| ([10, 0, 0, i], 80).into()).collect();
        universe.extend(more);
        universe.sort();
        universe.dedup();
        let side = |second: bool| {
            let chosen = universe.iter().zip(&rows).filter_map(|(address, row)| {
                let ((in_first, in_second), weight, (mask, changes)) = *row;
                let changed = u32::from(second && changes);
                let destination = Destination {
                    address: *address,
                    weight: weight + changed,
                };
                let is = if second { in_second } else { in_first };
                is.then_some((destination, mask ^ u64::from(changed)))
            });
            let (destinations, masks): (Vec<_>, Vec<_>) = chosen.unzip();
            Record {
                destinations,
                zone_mask: base
                    .zone_mask
                    .clone()
                    .map(|mask| ZoneMask { masks, ..mask }),
                ..base.clone()
            }
        };
        (side(false), side(true))
    })
}

fn patched(old: &Record, new: &Record) -> v1::RecordPatch {
    let patch = make_patch(old, old.content_hash(), new, new.content_hash());
    transmit(&patch.unwrap())
}

/// A record with zones and four destinations, 10.0.0.1 to 10.0.0.4.
fn base() -> Record {
    let key = RecordKey {
        cluster: CLUSTER.into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    let addresses = (1..=4_u8).map(|i| SocketAddr::from(([10, 0, 0, i], 80)));
    Record {
        destinations: addresses.map(Destination::new).collect(),
        zone_mask: Some(ZoneMask {
            zones: vec!["a".into()],
            masks: vec![1, 0, 1, 0],
        }),
        ..Record::new(key)
    }
}

/// [`base`] without its first destination, another mask of the second, and one more at the end.
fn next() -> Record {
    let mut next = base();
    next.destinations.remove(0);
    let more = SocketAddr::from(([10, 0, 0, 9], 80));
    next.destinations.push(Destination::new(more));
    next.zone_mask.as_mut().unwrap().masks = vec![1, 1, 0, 1];
    next
}

#[test]
fn a_patch_has_what_changed_and_no_more() {
    let patch = patched(&base(), &next());
    let of = |octets: &[u8]| octets.iter().map(|o| 0x0a00_0000 + u32::from(*o)).collect();
    let put: Vec<u32> = of(&[2, 9]);
    assert_eq!(patch.put.unwrap().v4, put);
    assert_eq!(patch.put_zone_masks, [1, 1]);
    let remove: Vec<u32> = of(&[1]);
    assert_eq!(patch.remove.unwrap().v4, remove);
    assert_eq!(patch.base, base().content_hash().to_bytes());
    assert_eq!(patch.hash, next().content_hash().to_bytes());
}

#[test]
fn changes_of_more_than_destinations_have_no_patch() {
    type Change = fn(&mut Record);
    let changes: [Change; 10] = [
        |r| r.key.port = "other".into(),
        |r| r.frontends.clear(),
        |r| r.zone_mask = None,
        |r| r.zone_mask.as_mut().unwrap().zones = vec!["b".into()],
        |r| r.affinity = Some(Affinity { timeout_seconds: 1 }),
        |r| r.available = [Family::V4].into_iter().collect(),
        |r| r.scheduling.scheduler = Some("lc".into()),
        |r| r.drain_seconds = Some(1),
        |r| r.health_check_port = Some(1),
        |r| r.node_group = Some("g".into()),
    ];
    let mut old = base();
    old.frontends = vec![Frontend {
        kind: FrontendKind::ClusterIp,
        address: FrontendAddress::Vip([10, 96, 0, 1].into()),
        port: 80,
        ranges: vec![],
        lists: Lists::Cluster,
        masquerade: false,
        source_ranges: vec![],
        bind: true,
    }];
    let hash = old.content_hash();
    for (index, change) in changes.into_iter().enumerate() {
        let mut new = old.clone();
        change(&mut new);
        assert_eq!(
            make_patch(&old, hash, &new, new.content_hash()),
            None,
            "{index}"
        );
    }
}

#[test]
fn a_patch_that_breaks_a_rule_is_refused_with_the_fields_name() {
    type Break = fn(&mut v1::RecordPatch);
    let cases: [(&str, Break); 7] = [
        ("destinations", |p| p.put.as_mut().unwrap().v4.reverse()),
        ("destinations.ports", |p| {
            p.remove.as_mut().unwrap().ports = vec![0];
        }),
        ("patch.put_zone_masks", |p| p.put_zone_masks.truncate(1)),
        ("patch.put_zone_masks", |p| p.put_zone_masks.clear()),
        ("patch.remove.weights", |p| {
            p.remove.as_mut().unwrap().weights = vec![1];
        }),
        // A destination that the base lacks.
        ("patch.remove", |p| {
            p.remove.as_mut().unwrap().v4 = vec![0x0a00_0008];
        }),
        // A destination that is also put.
        ("patch.remove", |p| p.remove = p.put.clone()),
    ];
    apply_patch(&base(), &patched(&base(), &next())).unwrap();
    for (index, (field, change)) in cases.into_iter().enumerate() {
        let mut patch = patched(&base(), &next());
        change(&mut patch);
        let error = apply_patch(&base(), &patch).unwrap_err();
        assert_eq!(error.field, field, "case {index}");
    }
}

proptest! {
    #[test]
    fn a_patch_makes_the_new_record_of_the_old((old, new) in pair()) {
        let patch = patched(&old, &new);
        let got = apply_patch(&old, &patch).unwrap();
        prop_assert_eq!(got.content_hash(), new.content_hash());
        prop_assert_eq!(&got, &new);
        let back = patched(&new, &old);
        prop_assert_eq!(apply_patch(&new, &back).unwrap(), old);
    }

    /// Any patch yields either a record that keeps the rules, or an error.
    #[test]
    fn any_patch_is_applied_or_refused(
        base in record(),
        put in (vec(0..3_u32, 0..4), vec(1..3_u32, 0..4)),
        remove in vec(0..3_u32, 0..3),
        put_zone_masks in vec(any::<u64>(), 0..4),
    ) {
        let columns = |v4: Vec<u32>, ports: Vec<u32>| v1::Destinations {
            v4,
            ports,
            ..v1::Destinations::default()
        };
        let patch = v1::RecordPatch {
            put: Some(columns(put.0, put.1)),
            remove: Some(columns(remove, vec![80])),
            put_zone_masks,
            ..v1::RecordPatch::default()
        };
        if let Ok(record) = apply_patch(&base, &patch) {
            let again = encode_record(&record, record.content_hash());
            prop_assert_eq!(decode_record(&again, &cluster()).unwrap().record, record);
        }
    }
}
