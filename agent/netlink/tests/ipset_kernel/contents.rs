// SPDX-License-Identifier: Apache-2.0

//! Contents of sets.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::{Family, Protocol};
use portolan_netlink::Errno;
use portolan_netlink::ipset::{EntryFault, Ipset, IpsetError, Request, RequestError};

use crate::common::{in_netns, output, require};
use crate::{KINDS, LANES, add, apply, create, del, entries, header, ip, listed};

/// Entries of a set as printed by `ipset save`.
fn saved(text: &str, name: &str) -> BTreeSet<String> {
    let prefix = format!("add {name} ");
    text.lines()
        .filter_map(|line| line.strip_prefix(&prefix))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_cheap_look_counts_the_entries_of_all_kinds() {
    let name = "a_cheap_look_counts_the_entries_of_all_kinds";
    in_netns(name, LANES, Ipset::open, |mut ipset| {
        let mut expected = BTreeMap::new();
        for (index, kind) in (0u16..).zip(KINDS) {
            for family in Family::ALL {
                let name = format!("SET-{index}-{family}");
                let (header, count) = (header(kind, family), index * 3);
                let some = entries(kind, family, count);
                apply(
                    &mut ipset,
                    &[create(&name, &header), add(&name, some.clone())],
                );
                let one_less = some.iter().take(1).cloned().collect();
                apply(&mut ipset, &[del(&name, one_less)]);
                let family = match kind {
                    SetKind::BitmapPort => Family::V4,
                    _ => family,
                };
                let header = SetHeader { family, ..header };
                expected.insert(name, (header, u32::from(count.saturating_sub(1))));
            }
        }
        assert_eq!(ipset.counts().unwrap(), expected);
    });
}

#[test]
fn all_kinds_and_families() {
    in_netns("all_kinds_and_families", LANES, Ipset::open, |mut ipset| {
        for (index, kind) in KINDS.into_iter().enumerate() {
            for family in Family::ALL {
                let name = format!("SET-{index}-{family}");
                let header = header(kind, family);
                let some = entries(kind, family, 30);
                apply(
                    &mut ipset,
                    &[create(&name, &header), add(&name, some.clone())],
                );

                let set = ipset.list().unwrap().sets.remove(&name).unwrap();
                // A bitmap has no family.
                let family = if kind == SetKind::BitmapPort {
                    Family::V4
                } else {
                    family
                };
                let header = SetHeader { family, ..header };
                assert_eq!(
                    set,
                    Set {
                        header,
                        entries: some.iter().cloned().collect()
                    }
                );

                let program = output("ipset", &format!("save {name}"));
                if let Some(text) = require("ipset save", &[], program) {
                    let ours: BTreeSet<String> = some.iter().map(ToString::to_string).collect();
                    assert_eq!(saved(&text, &name), ours);
                }
                let (half, rest) = some.split_at(15);
                apply(&mut ipset, &[del(&name, half.to_vec())]);
                assert_eq!(listed(&mut ipset, &name), rest.iter().cloned().collect());
            }
        }
        assert_eq!(ipset.names().unwrap().len(), 12);
        assert_eq!(ipset.list_headers().unwrap().len(), 12);
        let names: Vec<String> = ipset.names().unwrap().into_iter().collect();
        apply(
            &mut ipset,
            &names
                .into_iter()
                .map(|name| Request::Destroy { name })
                .collect::<Vec<_>>(),
        );
        assert_eq!(ipset.names().unwrap(), BTreeSet::new());
    });
}

#[test]
fn many_entries() {
    in_netns("many_entries", LANES, Ipset::open, |mut ipset| {
        for kind in KINDS {
            for family in Family::ALL {
                let many = entries(kind, family, 5000);
                apply(
                    &mut ipset,
                    &[create("a", &header(kind, family)), add("a", many.clone())],
                );
                assert_eq!(listed(&mut ipset, "a"), many.iter().cloned().collect());
                apply(&mut ipset, &[del("a", many[..4999].to_vec())]);
                assert_eq!(
                    listed(&mut ipset, "a"),
                    many[4999..].iter().cloned().collect()
                );
                apply(
                    &mut ipset,
                    &[Request::Flush {
                        name: "a".to_owned(),
                    }],
                );
                assert_eq!(listed(&mut ipset, "a"), BTreeSet::new());
                apply(
                    &mut ipset,
                    &[Request::Destroy {
                        name: "a".to_owned(),
                    }],
                );
            }
        }
    });
}

/// Assumptions of the plan: another mark for an address and port changes the entry in place, and
/// deletion needs only the address and port.
#[test]
fn a_mark_does_not_identify_an_entry() {
    in_netns(
        "a_mark_does_not_identify_an_entry",
        LANES,
        Ipset::open,
        |mut ipset| {
            for family in Family::ALL {
                let name = format!("MARKS-{family}");
                let of_mark = |mark| SetEntry::IpPortMark(ip(family, 1), Protocol::Tcp, 80, mark);
                let header = header(SetKind::HashIpPortMark, family);
                apply(
                    &mut ipset,
                    &[create(&name, &header), add(&name, vec![of_mark(0x1_0000)])],
                );
                apply(&mut ipset, &[add(&name, vec![of_mark(0xffff_0000)])]);
                assert_eq!(
                    listed(&mut ipset, &name),
                    BTreeSet::from([of_mark(0xffff_0000)])
                );
                apply(&mut ipset, &[del(&name, vec![of_mark(0x1_0000)])]);
                assert_eq!(listed(&mut ipset, &name), BTreeSet::new());
            }
        },
    );
}

/// The record of ownership has marks as addresses with port 0.
#[test]
fn port_zero_can_be_an_entry() {
    in_netns(
        "port_zero_can_be_an_entry",
        LANES,
        Ipset::open,
        |mut ipset| {
            for (family, address) in [(Family::V4, "63.255.0.0"), (Family::V6, "::3fff:0")] {
                let name = format!("OWNED-{family}");
                let entry = SetEntry::IpPort(address.parse().unwrap(), Protocol::Tcp, 0);
                let header = header(SetKind::HashIpPort, family);
                apply(
                    &mut ipset,
                    &[create(&name, &header), add(&name, vec![entry.clone()])],
                );
                assert_eq!(listed(&mut ipset, &name), BTreeSet::from([entry.clone()]));
                apply(&mut ipset, &[del(&name, vec![entry])]);
                assert_eq!(listed(&mut ipset, &name), BTreeSet::new());
            }
        },
    );
}

#[test]
fn replaces_by_swap() {
    in_netns("replaces_by_swap", LANES, Ipset::open, |mut ipset| {
        let kind = SetKind::HashIpPort;
        let v4 = header(kind, Family::V4);
        let (old, new) = (
            entries(kind, Family::V4, 10),
            entries(kind, Family::V4, 2000),
        );
        apply(&mut ipset, &[create("KUBE", &v4), add("KUBE", old)]);
        let swap = |a: &str, b: &str| Request::Swap {
            a: a.to_owned(),
            b: b.to_owned(),
        };
        apply(
            &mut ipset,
            &[
                create("TMP", &v4),
                add("TMP", new.clone()),
                swap("TMP", "KUBE"),
                Request::Destroy {
                    name: "TMP".to_owned(),
                },
            ],
        );
        assert_eq!(ipset.names().unwrap(), BTreeSet::from(["KUBE".to_owned()]));
        assert_eq!(listed(&mut ipset, "KUBE"), new.into_iter().collect());

        let requests = [
            create("V6", &header(kind, Family::V6)),
            swap("KUBE", "V6"),
            swap("X", "V6"),
        ];
        let error = |index, errno| RequestError {
            index,
            entry: None,
            errno,
        };
        assert_eq!(
            ipset.apply(&requests).unwrap(),
            [
                error(1, Errno::IPSET_TYPE_MISMATCH),
                error(2, Errno::ENOENT)
            ]
        );
    });
}

#[test]
fn sets_of_others_are_only_named() {
    in_netns(
        "sets_of_others_are_only_named",
        LANES,
        Ipset::open,
        |mut ipset| {
            apply(
                &mut ipset,
                &[create("ours", &header(SetKind::HashIpPort, Family::V4))],
            );
            for arguments in [
                "create net hash:net",
                "create list list:set",
                "add net 10.0.0.0/8",
                "add list net",
                "create timed hash:ip,port,net timeout 600 counters comment",
                "add timed 10.0.0.1,tcp:80,10.1.0.0/16 comment x",
                "add timed 10.0.0.1,tcp:80,10.1.2.0/24 nomatch",
                "add ours 10.0.0.1,icmp:echo-request",
                "add ours 10.0.0.1,sctp:9",
            ] {
                if require("sets_of_others", &[], output("ipset", arguments)).is_none() {
                    return;
                }
            }
            let listing = ipset.list().unwrap();
            assert_eq!(
                listing.other,
                BTreeSet::from(["net".to_owned(), "list".to_owned()])
            );
            assert_eq!(listing.sets.keys().collect::<Vec<_>>(), ["ours", "timed"]);
            let entries: Vec<usize> = listing.sets.values().map(|set| set.entries.len()).collect();
            assert_eq!((entries, listing.skipped), (vec![1, 1], 2));
            assert_eq!(ipset.names().unwrap().len(), 4);

            let into_net = add("net", vec![SetEntry::Ip(ip(Family::V4, 1))]);
            let error = IpsetError::Entry {
                index: 0,
                entry: 0,
                fault: EntryFault::Kind,
            };
            assert_eq!(ipset.apply(&[into_net]), Err(error));
            let busy = RequestError {
                index: 0,
                entry: None,
                errno: Errno::IPSET_BUSY,
            };
            let destroy = Request::Destroy {
                name: "net".to_owned(),
            };
            assert_eq!(ipset.apply(&[destroy]).unwrap(), [busy]);
        },
    );
}
