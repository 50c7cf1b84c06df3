// SPDX-License-Identifier: Apache-2.0

//! Tests of both ends together, and of what the edge leaves out.

use portolan_mcs::{Action, Target};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;
use serde_json::{Value, json};

use super::*;
use v1::work_item::Action as Message;

fn name(name: &str) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn write(kind: WriteKind, of: &str, action: Action) -> Write {
    let target = Target {
        kind,
        name: name(of),
    };
    Write { target, action }
}

fn delete(of: &str) -> Write {
    let action = Action::Delete { uid: "u".into() };
    write(WriteKind::ServiceImport, of, action)
}

fn object(kind: WriteKind, of: &str) -> Value {
    json!({"apiVersion": kind.api_version(), "kind": kind.as_str(),
        "metadata": {"namespace": "shop", "name": of}})
}

fn create(of: &str, note: &str) -> Write {
    let mut object = object(WriteKind::ServiceImport, of);
    object["metadata"]["annotations"] = json!({"portolan.dev/winner": "us-1", "note": note});
    object["spec"] = json!({"type": "ClusterSetIP", "ports": []});
    write(WriteKind::ServiceImport, of, Action::Create(object))
}

fn status(of: &str) -> Write {
    let mut object = object(WriteKind::ServiceExport, of);
    object["status"] = json!({"conditions": []});
    write(WriteKind::ServiceExport, of, Action::ApplyStatus(object))
}

fn slice(of: &str, zone: &str) -> (ImportName, WantedSlice) {
    let mut object = object(WriteKind::EndpointSlice, of);
    object["metadata"]["labels"] = json!({
        "multicluster.kubernetes.io/service-name": "web",
        "multicluster.kubernetes.io/source-cluster": "us-1",
        "endpointslice.kubernetes.io/managed-by": "portolan.dev",
    });
    object["addressType"] = "IPv4".into();
    object["ports"] = json!([]);
    object["endpoints"] = json!([{"addresses": ["10.1.0.1"], "zone": zone,
        "conditions": {"ready": true, "serving": true, "terminating": false}}]);
    let import = name("web");
    (name(of), WantedSlice { import, object })
}

fn work(writes: Vec<Write>, slices: Option<Vec<(ImportName, WantedSlice)>>) -> EdgeWork {
    EdgeWork {
        leading: true,
        writes: Arc::new(writes),
        slices: slices.map(|slices| Arc::new(slices.into_iter().collect())),
    }
}

/// Sends a change. Returns what arrived, and the numbers of items that were put and deleted.
fn send(
    outbox: &mut WorkOutbox,
    inbox: &mut WorkInbox,
    work: &EdgeWork,
) -> Option<(EdgeWork, [usize; 2])> {
    let change = outbox.take(work)?;
    let sizes = [change.put.len(), change.delete.len()];
    let (parts, commit) = change.into_parts(200);
    for part in parts {
        assert_eq!(inbox.stage(part), Ok(vec![]));
    }
    Some((inbox.commit(&commit).unwrap(), sizes))
}

#[test]
fn the_first_change_brings_all_and_later_ones_what_differs() {
    let (mut outbox, mut inbox) = (WorkOutbox::default(), WorkInbox::default());
    let (outbox, inbox) = (&mut outbox, &mut inbox);
    let first = work(
        vec![status("web"), delete("old"), create("web", "a")],
        Some(vec![slice("web-1", "a"), slice("web-2", "a")]),
    );
    let arrived = send(outbox, inbox, &first);
    assert_eq!(arrived, Some((first.clone(), [5, 0])));
    assert_eq!(send(outbox, inbox, &first), None, "nothing changed");
    let second = work(
        vec![status("web"), create("web", "b")],
        Some(vec![slice("web-2", "b")]),
    );
    let arrived = send(outbox, inbox, &second);
    assert_eq!(arrived, Some((second.clone(), [2, 2])));
    // A replica that leads no more asks for nothing.
    let none = EdgeWork::default();
    let arrived = send(outbox, inbox, &none);
    assert_eq!(arrived, Some((none, [0, 3])));
    // A new stream begins without work, and says so at once.
    let (mut outbox, mut inbox) = (WorkOutbox::default(), WorkInbox::default());
    let arrived = send(&mut outbox, &mut inbox, &EdgeWork::default());
    assert_eq!(arrived, Some((EdgeWork::default(), [0, 0])));
}

#[test]
fn without_all_slices_none_is_sent() {
    let many = |count: usize| {
        let slices = (0..count).map(|number| slice(&format!("s-{number}"), "a"));
        work(vec![delete("a")], Some(slices.collect()))
    };
    let mut outbox = WorkOutbox::default();
    let (mut inbox, too_many) = (WorkInbox::default(), many(MAX_SLICES + 1));
    assert!(
        send(&mut outbox, &mut inbox, &many(3))
            .unwrap()
            .0
            .slices
            .is_some()
    );
    let change = outbox.take(&too_many).unwrap();
    assert_eq!(change.left_out, Some(LeftOut::Slices));
    assert_eq!((change.put.len(), change.delete.len()), (0, 3));
    assert!(!change.commit.slices);
    assert_eq!(outbox.take(&too_many), None, "it is said once");
    let (_, commit) = change.clone().into_parts(1_000);
    for part in change.into_parts(1_000).0 {
        inbox.stage(part).unwrap();
    }
    assert_eq!(inbox.commit(&commit).unwrap().slices, None);
    let (arrived, sizes) = send(&mut outbox, &mut inbox, &many(2)).unwrap();
    assert_eq!((arrived, sizes), (many(2), [2, 0]));
}

#[test]
fn a_write_that_is_too_large_is_named() {
    let large = create("web", &"x".repeat(MAX_ITEM_BYTES));
    let mut outbox = WorkOutbox::default();
    let change = outbox
        .take(&work(vec![large.clone(), delete("a")], None))
        .unwrap();
    assert_eq!(change.left_out, Some(LeftOut::Write(large.target)));
    assert_eq!(change.put.len(), 1);
}

/// Ports that make an object nearly as large as an item may be.
fn long_ports() -> Value {
    let text = "x".repeat(1_000);
    let port = json!({"name": text, "protocol": "TCP", "port": 80, "appProtocol": text});
    Value::Array(vec![port; 250])
}

#[test]
fn writes_beyond_the_bytes_that_an_edge_takes_follow_when_the_first_ones_are_done() {
    let ports = long_ports();
    let writes = (0..80).map(|number| {
        let mut write = create(&format!("w-{number:02}"), "a");
        if let Action::Create(object) = &mut write.action {
            object["spec"]["ports"] = ports.clone();
        }
        write
    });
    let slices = (0..MAX_SLICE_BYTES / MAX_ITEM_BYTES).map(|number| {
        let (name, mut slice) = slice(&format!("s-{number:02}"), "a");
        slice.object["ports"] = ports.clone();
        (name, slice)
    });
    let mut left: Vec<Write> = writes.collect();
    let slices: Arc<WantedSlices> = Arc::new(slices.collect());
    let (mut outbox, mut inbox) = (WorkOutbox::default(), WorkInbox::default());
    let mut changes = 0;
    while !left.is_empty() {
        let work = EdgeWork {
            leading: true,
            writes: Arc::new(left.clone()),
            slices: Some(Arc::clone(&slices)),
        };
        let change = outbox.take(&work).expect("what is left");
        assert_eq!(change.left_out, None);
        let (parts, commit) = change.into_parts(MAX_ITEM_BYTES);
        for part in parts {
            assert_eq!(inbox.stage(part), Ok(vec![]));
        }
        let arrived = inbox.commit(&commit).expect("work that an edge takes");
        assert!(arrived.slices.as_ref() == Some(&slices), "other slices");
        let done = arrived.writes.len();
        assert!(done > 0 && arrived.writes[..] == left[..done], "{done}");
        left.drain(..done);
        changes += 1;
    }
    assert_eq!(changes, 2);
}

/// An item as any peer may send it.
fn hostile(kind: i32, of: &str, action: Option<Message>) -> prost::bytes::Bytes {
    let id = v1::ObjectId {
        kind,
        namespace: "shop".to_owned(),
        name: of.to_owned(),
    };
    let id = Some(id);
    v1::WorkItem { id, action }.encode_to_vec().into()
}

fn part(put: Vec<prost::bytes::Bytes>) -> v1::CentreWork {
    let delete = Vec::new();
    v1::CentreWork { put, delete }
}

fn commit_of(number: u64, items: &[prost::bytes::Bytes]) -> v1::CentreWorkCommit {
    let mut total = portolan_model::SetHash::default();
    items.iter().for_each(|item| total.insert(hash_of(item)));
    v1::CentreWorkCommit {
        number,
        leading: true,
        slices: true,
        hash: total.to_bytes().into(),
    }
}

#[test]
fn what_an_edge_does_not_write_is_left_out_and_named() {
    let import = v1::ObjectKind::ServiceImport.into();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "shop", "name": "a"}});
    let json = |value: &Value| value.to_string().into_bytes();
    let (_, foreign) = slice("web-1", "a");
    let mut foreign = foreign.object;
    foreign["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "other".into();
    let items = vec![
        hostile(99, "a", Some(Message::Create(json(&secret)))),
        hostile(import, "a", Some(Message::Create(json(&secret)))),
        hostile(import, "b", Some(Message::Create(b"{".to_vec()))),
        hostile(
            v1::ObjectKind::Node.into(),
            "c",
            Some(Message::Delete("u".to_owned())),
        ),
        hostile(import, "d", Some(Message::Delete(String::new()))),
        hostile(import, "e", Some(Message::Keep(json(&foreign)))),
        hostile(
            v1::ObjectKind::EndpointSlice.into(),
            "web-1",
            Some(Message::Keep(json(&foreign))),
        ),
        hostile(import, "f", None),
        hostile(import, "good", Some(Message::Delete("u".to_owned()))),
    ];
    let mut inbox = WorkInbox::default();
    let refused = inbox.stage(part(items.clone())).unwrap();
    let refused: Vec<_> = refused.iter().map(ToString::to_string).collect();
    for (said, expected) in refused.iter().zip([
        "object of kind 99 shop/a: id.kind: none",
        "OBJECT_KIND_SERVICE_IMPORT shop/a: create: ",
        "OBJECT_KIND_SERVICE_IMPORT shop/b: create: ",
        "OBJECT_KIND_NODE shop/c: id.kind: none",
        "OBJECT_KIND_SERVICE_IMPORT shop/d: delete: no UID",
        "OBJECT_KIND_SERVICE_IMPORT shop/e: action: none",
        "OBJECT_KIND_ENDPOINT_SLICE shop/web-1: metadata.labels: ",
        "OBJECT_KIND_SERVICE_IMPORT shop/f: action: none",
    ]) {
        assert!(said.starts_with(expected), "{said}, expected {expected}");
    }
    assert_eq!(refused.len(), 8);
    // The others are done.
    let arrived = inbox.commit(&commit_of(1, &items)).unwrap();
    assert_eq!(*arrived.writes, [delete("good")]);
    assert!(arrived.slices.unwrap().is_empty());
}

#[test]
fn a_change_that_is_not_whole_ends_the_stream() {
    let items = vec![hostile(
        v1::ObjectKind::ServiceImport.into(),
        "a",
        Some(Message::Delete("u".to_owned())),
    )];
    let staged = || {
        let mut inbox = WorkInbox::default();
        inbox.stage(part(items.clone())).unwrap();
        inbox
    };
    let error = staged().commit(&commit_of(1, &[])).unwrap_err();
    assert_eq!(error, WorkError::Mismatch);
    let error = staged().commit(&commit_of(2, &items)).unwrap_err();
    assert_eq!(error, WorkError::Number(2));
    assert!(staged().commit(&commit_of(1, &items)).is_ok());
    let nameless = v1::WorkItem::default().encode_to_vec().into();
    let error = staged().stage(part(vec![nameless])).unwrap_err();
    assert!(matches!(error, WorkError::Item(_)), "{error}");
}

#[test]
fn what_a_centre_may_stage_is_bounded() {
    let large = vec![0; MAX_ITEM_BYTES + 1].into();
    let error = WorkInbox::default().stage(part(vec![large])).unwrap_err();
    assert!(matches!(error, WorkError::TooMany { .. }), "{error}");
    let mut inbox = WorkInbox::default();
    let kind = v1::ObjectKind::ServiceImport.into();
    let many = (0..=MAX_WRITES + MAX_SLICES).map(|number| {
        let action = Some(Message::Delete("u".to_owned()));
        hostile(kind, &format!("s{number}"), action)
    });
    let error = inbox.stage(part(many.collect())).unwrap_err();
    assert!(error.to_string().contains("items"), "{error}");
    // Nor does one item sent again and again grow without end.
    let mut inbox = WorkInbox::default();
    let long = Message::Create(vec![b' '; MAX_ITEM_BYTES - 100]);
    let item = hostile(kind, "a", Some(long));
    let ended = (0..MAX_BYTES / MAX_ITEM_BYTES + 2)
        .find_map(|_| inbox.stage(part(vec![item.clone()])).err());
    let error = ended.expect("a bound").to_string();
    assert!(error.contains("before a commit"), "{error}");
}

/// Work of a few names: of each what is to be written, if anything is.
fn any_work() -> impl Strategy<Value = EdgeWork> {
    let write = prop_oneof![
        Just(None),
        (0..3_u8).prop_map(|note| Some(create("", &note.to_string()))),
        Just(Some(delete(""))),
        Just(Some(status(""))),
    ];
    let slices = vec(option::of(0..3_u8), 4);
    (any::<bool>(), vec(write, 6), option::of(slices)).prop_map(|(leading, writes, slices)| {
        let named = writes.into_iter().enumerate();
        let writes = named.filter_map(|(number, write)| {
            let of = format!("w{number}");
            Some(match write?.action {
                Action::Delete { .. } => delete(&of),
                Action::ApplyStatus(_) => status(&of),
                Action::Create(object) | Action::Apply(object) => {
                    let note = object["metadata"]["annotations"]["note"].as_str()?;
                    create(&of, note)
                }
            })
        });
        let mut writes: Vec<_> = writes.collect();
        writes.sort_by_key(inbox::turn);
        let slices = slices.map(|slices| {
            let named = slices.into_iter().enumerate();
            let some = named.filter_map(|(number, zone)| {
                Some(slice(&format!("s{number}"), &zone?.to_string()))
            });
            Arc::new(some.collect())
        });
        EdgeWork {
            leading,
            writes: Arc::new(writes),
            slices,
        }
    })
}

proptest! {
    /// However the work changes, the edge has that of the centre after each change, and a new stream brings the same.
    #[test]
    fn the_edge_has_the_work_of_the_centre(all in vec(any_work(), 1..12)) {
        let (mut outbox, mut inbox) = (WorkOutbox::default(), WorkInbox::default());
        let mut has = None;
        for work in all {
            if let Some((arrived, _)) = send(&mut outbox, &mut inbox, &work) {
                has = Some(arrived);
            }
            prop_assert_eq!(has.as_ref(), Some(&work));
            let (mut outbox, mut inbox) = (WorkOutbox::default(), WorkInbox::default());
            let anew = send(&mut outbox, &mut inbox, &work).map(|(arrived, _)| arrived);
            prop_assert_eq!(anew, Some(work));
        }
    }
}
