// SPDX-License-Identifier: Apache-2.0

//! Refusals by the kernel and by this crate.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use portolan_model::ipset::{SetEntry, SetHeader, SetKind};
use portolan_model::{Family, Protocol};
use portolan_netlink::Errno;
use portolan_netlink::ipset::{EntryFault, Ipset, IpsetError, Request, RequestError};

use crate::common::in_netns;
use crate::{LANES, add, apply, create, del, entries, entry, header, ip, listed};

/// 0.0.0.0 cannot be in a `hash:ip`; all the others get in, before the swap that follows.
#[test]
fn bad_entries_keep_out_no_others() {
    in_netns(
        "bad_entries_keep_out_no_others",
        LANES,
        Ipset::open,
        |mut ipset| {
            let v4 = header(SetKind::HashIp, Family::V4);
            let good = entries(SetKind::HashIp, Family::V4, 2000);
            let bad = [5, 6, 699, 700, 1500, 2004];
            let mut mixed = good.clone();
            for index in bad {
                mixed.insert(index, SetEntry::Ip(Ipv4Addr::UNSPECIFIED.into()));
            }
            let requests = [
                create("a", &v4),
                create("b", &v4),
                add("b", good[..3].to_vec()),
                add("a", mixed),
                add("missing", good.clone()),
                Request::Swap {
                    a: "a".to_owned(),
                    b: "b".to_owned(),
                },
            ];
            let mut expected: Vec<RequestError> = bad
                .iter()
                .map(|entry| RequestError {
                    index: 3,
                    entry: Some(*entry),
                    errno: Errno::IPSET_HASH_ELEM,
                })
                .collect();
            expected.push(RequestError {
                index: 4,
                entry: None,
                errno: Errno::ENOENT,
            });
            assert_eq!(ipset.apply(&requests).unwrap(), expected);
            assert_eq!(listed(&mut ipset, "b"), good.iter().cloned().collect());
            assert_eq!(listed(&mut ipset, "a"), good[..3].iter().cloned().collect());
        },
    );
}

#[test]
fn full_sets() {
    in_netns("full_sets", LANES, Ipset::open, |mut ipset| {
        let small = SetHeader {
            max_entries: 1000,
            ..header(SetKind::HashIp, Family::V6)
        };
        let many = entries(SetKind::HashIp, Family::V6, 20_000);
        let errors = ipset
            .apply(&[create("a", &small), add("a", many.clone())])
            .unwrap();
        assert!(
            errors
                .iter()
                .all(|error| error.errno == Errno::IPSET_HASH_FULL)
        );
        let failed: BTreeSet<SetEntry> = errors
            .iter()
            .filter_map(|error| many.get(error.entry?).cloned())
            .collect();
        let stored = listed(&mut ipset, "a");
        assert_eq!(failed.len(), errors.len());
        assert!(stored.is_disjoint(&failed));
        assert_eq!(stored.len() + failed.len(), many.len());
        // The kernel counts by parts of the hash and lets in a few more.
        assert!((1000..1100).contains(&stored.len()), "{}", stored.len());
        // Existing entries are no error, even in a full set.
        apply(&mut ipset, &[add("a", stored.into_iter().collect())]);
    });
}

#[test]
fn repeated_requests_are_no_error() {
    in_netns(
        "repeated_requests_are_no_error",
        LANES,
        Ipset::open,
        |mut ipset| {
            let v4 = header(SetKind::HashIpPortIp, Family::V4);
            let again = |header: &SetHeader| Request::Create {
                name: "a".to_owned(),
                header: header.clone(),
                expected_entries: 9,
                exclusive: false,
            };
            let some = entries(v4.kind, v4.family, 3);
            for _ in 0..2 {
                apply(&mut ipset, &[again(&v4), add("a", some.clone())]);
            }
            for _ in 0..2 {
                apply(
                    &mut ipset,
                    &[
                        del("a", some.clone()),
                        Request::Destroy {
                            name: "b".to_owned(),
                        },
                    ],
                );
            }
            let larger = SetHeader {
                max_entries: 131_072,
                ..v4.clone()
            };
            let requests = [create("a", &v4), again(&larger), again(&v4)];
            let error = |index| RequestError {
                index,
                entry: None,
                errno: Errno::EEXIST,
            };
            assert_eq!(ipset.apply(&requests).unwrap(), [error(0), error(1)]);
            assert_eq!(ipset.list_headers().unwrap()["a"], v4);
        },
    );
}

#[test]
fn refuses_before_anything_is_sent() {
    in_netns(
        "refuses_before_anything_is_sent",
        LANES,
        Ipset::open,
        |mut ipset| {
            let v4 = header(SetKind::HashIpPortNet, Family::V4);
            apply(&mut ipset, &[create("a", &v4)]);
            let good = entry(v4.kind, Family::V4, 1);
            let zero = SetEntry::IpPortNet(
                ip(Family::V4, 1),
                Protocol::Tcp,
                1,
                "0.0.0.0/0".parse().unwrap(),
            );
            for (bad, fault) in [
                (entry(v4.kind, Family::V6, 1), EntryFault::Family),
                (entry(SetKind::HashIpPort, Family::V4, 1), EntryFault::Kind),
                (zero, EntryFault::ZeroPrefix),
            ] {
                // Another socket knows of the set only from the kernel.
                for mut ipset in [Ipset::open().unwrap(), Ipset::open().unwrap()] {
                    let requests = [
                        add("a", vec![good.clone()]),
                        add("a", vec![good.clone(), bad.clone()]),
                    ];
                    let error = IpsetError::Entry {
                        index: 1,
                        entry: 1,
                        fault,
                    };
                    assert_eq!(ipset.apply(&requests), Err(error));
                }
            }
            let name = "x".repeat(32);
            let requests = [add("a", vec![good]), Request::Flush { name: name.clone() }];
            assert_eq!(
                ipset.apply(&requests),
                Err(IpsetError::Name { index: 1, name })
            );
            assert_eq!(listed(&mut ipset, "a"), BTreeSet::new());
        },
    );
}
