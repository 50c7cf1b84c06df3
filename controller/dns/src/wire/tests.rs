// SPDX-License-Identifier: Apache-2.0

//! Queries as bytes: good ones, bad ones, and any.

use std::sync::{Arc, LazyLock};

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use proptest::prelude::*;

use super::{HEADER, MAX_MESSAGE};
use crate::testing::{changes, cluster_ip, config, endpoint, headless, port, slice, zone, zone_of};
use crate::{NamesChange, Port, Server, SharedZone};

fn server() -> Server {
    static SERVER: LazyLock<Server> =
        LazyLock::new(|| Server::new(Arc::new(SharedZone::new(zone()))));
    SERVER.clone()
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(0xbeef, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(crate::name::absolute(name).unwrap(), kind));
    message
}

fn ask(server: &Server, query: &Message) -> Message {
    let reply = server.answer(&query.to_vec().unwrap()).unwrap();
    Message::from_vec(&reply).unwrap()
}

#[test]
fn a_reply_matches_its_query() {
    let query = query("SVC1.testns.svc.cluster.LOCAL", RecordType::A);
    let reply = ask(&server(), &query);
    assert_eq!(
        (reply.id, reply.message_type),
        (0xbeef, MessageType::Response)
    );
    assert_eq!(reply.queries, query.queries);
    assert!(reply.queries[0].name().eq_case(query.queries[0].name()));
    assert!(reply.answers[0].name.eq_case(query.queries[0].name()));
    assert!(reply.recursion_desired && reply.authoritative);
    assert!(!reply.recursion_available && !reply.truncation);
    assert_eq!(reply.answers.len(), 1);
    assert_eq!(reply.edns, None);
}

#[test]
fn edns_is_answered_with_edns() {
    let mut with_edns = query("svc1.testns.svc.cluster.local", RecordType::A);
    let mut edns = Edns::new();
    edns.set_max_payload(4096).set_dnssec_ok(true);
    with_edns.set_edns(edns);
    let reply = ask(&server(), &with_edns);
    let edns = reply.edns.unwrap();
    assert_eq!(
        (edns.version(), edns.max_payload(), edns.flags().dnssec_ok),
        (0, 1232, true)
    );
    assert!(edns.options().as_ref().is_empty());

    with_edns.edns.as_mut().unwrap().set_version(1);
    let reply = ask(&server(), &with_edns);
    assert_eq!(
        u16::from(reply.response_code),
        u16::from(ResponseCode::BADVERS)
    );
    assert_eq!(reply.edns.unwrap().version(), 0);
    assert_eq!(reply.answers, []);
}

#[test]
fn foreign_names_are_refused() {
    let server = server();
    let mut chaos = query("svc1.testns.svc.cluster.local", RecordType::A);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let queries = [
        chaos,
        query("example.org", RecordType::A),
        query("cluster.local", RecordType::AXFR),
        query("cluster.local", RecordType::IXFR),
    ];
    for query in queries {
        let reply = ask(&server, &query);
        assert_eq!(reply.response_code, ResponseCode::Refused, "{query}");
        assert!(!reply.authoritative && reply.answers.is_empty());
        assert_eq!(reply.queries, query.queries);
    }
    let any = ask(
        &server,
        &query("svc1.testns.svc.cluster.local", RecordType::ANY),
    );
    assert_eq!(
        (any.response_code, any.authorities.len()),
        (ResponseCode::NoError, 1)
    );
}

#[test]
fn other_operations_are_not_implemented() {
    for operation in [OpCode::Notify, OpCode::Update, OpCode::Status] {
        let mut message = query("cluster.local", RecordType::SOA);
        message.metadata.op_code = operation;
        let reply = ask(&server(), &message);
        assert_eq!((reply.id, reply.op_code), (0xbeef, operation));
        assert_eq!(reply.response_code, ResponseCode::NotImp);
    }
}

#[test]
fn malformed_queries_get_formerr_with_their_id() {
    let server = server();
    let good = query("svc1.testns.svc.cluster.local", RecordType::A)
        .to_vec()
        .unwrap();
    let mut two = query("svc1.testns.svc.cluster.local", RecordType::A);
    two.add_query(two.queries[0].clone());
    let mut none = good[..HEADER].to_vec();
    none[5] = 0;
    let mut pointer = good[..HEADER].to_vec();
    pointer.extend([0xc0, 0x0c, 0, 1, 0, 1]);
    let cut = good[..good.len() - 3].to_vec();
    for bad in [
        two.to_vec().unwrap(),
        none,
        pointer,
        cut,
        good[..2].to_vec(),
        good[..11].to_vec(),
    ] {
        let reply = server.answer(&bad).unwrap();
        assert_eq!(reply.len(), HEADER);
        let reply = Message::from_vec(&reply).unwrap();
        assert_eq!(
            (reply.id, reply.response_code),
            (0xbeef, ResponseCode::FormErr),
            "{bad:?}"
        );
    }
}

#[test]
fn replies_and_fragments_get_nothing() {
    let server = server();
    let mut reply = query("svc1.testns.svc.cluster.local", RecordType::A);
    reply.metadata.message_type = MessageType::Response;
    assert_eq!(server.answer(&reply.to_vec().unwrap()), None);
    assert_eq!(server.answer(&[]), None);
    assert_eq!(server.answer(&[1]), None);
}

/// A server of the headless Service `many` with so many endpoints.
fn headless_server(endpoints: usize, ports: &[Port]) -> Server {
    let endpoints: Vec<_> = (0..endpoints)
        .map(|i| endpoint(&format!("10.1.{}.{}", i / 250, i % 250)))
        .collect();
    let many = slice("many", "many-a", &endpoints, ports);
    let zone = zone_of(
        config(),
        [
            NamesChange::Service(headless("many")),
            NamesChange::Slice(many),
        ],
    );
    Server::new(Arc::new(SharedZone::new(zone)))
}

#[test]
fn a_reply_is_never_too_long() {
    let server = headless_server(5000, &[port("http", 80)]);
    for kind in [RecordType::A, RecordType::SRV] {
        let mut query = query("many.testns.svc.cluster.local", kind);
        query.set_edns(Edns::new());
        let bytes = server.answer(&query.to_vec().unwrap()).unwrap();
        assert!(
            bytes.len() <= MAX_MESSAGE && bytes.len() > MAX_MESSAGE - 2000,
            "{}",
            bytes.len()
        );
        let reply = Message::from_vec(&bytes).unwrap();
        assert!(reply.truncation && reply.edns.is_some());
        assert!(reply.additionals.is_empty());
    }
}

#[test]
fn four_thousand_addresses_fit() {
    let server = headless_server(4000, &[]);
    let query = query("MANY.testns.svc.cluster.local", RecordType::A);
    let reply = ask(&server, &query);
    assert_eq!((reply.answers.len(), reply.truncation), (4000, false));
    let name = query.queries[0].name();
    assert!(reply.answers.iter().all(|record| record.name.eq_case(name)));
}

#[test]
fn too_much_glue_is_left_out_and_nothing_else() {
    let server = headless_server(1000, &[port("http", 80)]);
    let reply = ask(
        &server,
        &query("many.testns.svc.cluster.local", RecordType::SRV),
    );
    assert_eq!((reply.answers.len(), reply.additionals.len()), (1000, 0));
    assert!(!reply.truncation);
}

#[test]
fn a_new_listing_takes_the_place_of_the_old_one() {
    let zone = Arc::new(SharedZone::new(crate::Zone::new(config(), 0).unwrap()));
    let server = Server::new(Arc::clone(&zone));
    let query = query("other.testns.svc.cluster.local", RecordType::A);
    assert_eq!(ask(&server, &query).response_code, ResponseCode::ServFail);
    assert!(!server.is_ready());
    zone.apply(changes().into_iter().chain([NamesChange::Synced]));
    assert!(server.is_ready());
    assert_eq!(ask(&server, &query).response_code, ResponseCode::NXDomain);
    let before = zone.read().serial();
    zone.replace(zone_of(
        config(),
        [NamesChange::Service(cluster_ip("other", &["10.0.0.7"]))],
    ));
    assert_eq!(ask(&server, &query).answers.len(), 1);
    assert!(zone.read().serial() > before);
}

fn legal(query: &[u8], reply: Option<Vec<u8>>) {
    let Some(reply) = reply else {
        assert!(query.len() < 2 || query.get(2).is_some_and(|flags| flags & 0x80 != 0));
        return;
    };
    assert!(reply.len() <= MAX_MESSAGE);
    assert_eq!(reply[..2], query[..2]);
    let message = Message::from_vec(&reply).unwrap();
    assert_eq!(message.message_type, MessageType::Response);
}

/// Labels that have a meaning, and some that have not.
fn any_name() -> impl Strategy<Value = Name> {
    let labels = [
        "svc",
        "pod",
        "testns",
        "podns",
        "svc1",
        "hdls1",
        "external",
        "cluster",
        "local",
        "_http",
        "_tcp",
        "_zone",
        "pin",
        "prefer",
        "in-addr",
        "ip6",
        "arpa",
        "10",
        "0",
        "dns",
        "ns",
        "dns-version",
        "10-0-0-1",
    ];
    let label = prop_oneof![
        prop::sample::select(labels.to_vec()).prop_map(|label| label.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 1..64),
    ];
    let zone = prop::sample::select(vec![
        "cluster.local",
        "svc.cluster.local",
        "in-addr.arpa",
        "ip6.arpa",
        "",
    ]);
    (prop::collection::vec(label, 0..6), zone).prop_filter_map("too long", |(labels, zone)| {
        let zone = crate::name::absolute(zone)?;
        let labels = labels.iter().map(Vec::as_slice);
        Name::from_labels(labels.chain(zone.iter())).ok()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_get_a_legal_reply_or_none(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
        legal(&bytes, server().answer(&bytes));
    }

    #[test]
    fn any_name_and_type_gets_a_legal_reply(name in any_name(), kind in 0u16..300) {
        let mut message = Message::new(1, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(name.clone(), RecordType::from(kind)));
        let bytes = message.to_vec().unwrap();
        let reply = server().answer(&bytes);
        legal(&bytes, reply.clone());
        let reply = Message::from_vec(&reply.unwrap()).unwrap();
        if reply.response_code != ResponseCode::FormErr {
            prop_assert!(reply.queries[0].name().eq_case(&name));
        }
    }

    #[test]
    fn a_damaged_query_gets_a_legal_reply_or_none(at in 0usize..60, byte in any::<u8>(), keep in 0usize..60) {
        let mut message = query("_http._tcp.svc1.testns.svc.cluster.local", RecordType::SRV);
        message.set_edns(Edns::new());
        let mut bytes = message.to_vec().unwrap();
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
        bytes.truncate(keep.max(12));
        legal(&bytes, server().answer(&bytes));
    }
}
