// SPDX-License-Identifier: Apache-2.0

//! The fuzz target of DNS: queries, and an agent's file of names.
//!
//! Invariants: an answer is a whole message with the query's id, no longer than the limit. Only
//! bytes that are not a query get none. A readable query of the zone is answered with a code of the
//! specification, and with the question as asked.

use std::sync::{Arc, OnceLock};

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use portolan_dns::{MAX_MESSAGE, PodMode, Server, SharedZone, Zone, ZoneConfig, replica};
use portolan_source::objects::{Names, names};

use crate::seeds;

/// The first byte of an input.
pub mod kind {
    /// The bytes of a query.
    pub const QUERY: u8 = b'q';
    /// The bytes of a file of names.
    pub const FILE: u8 = b'f';
}

fn zone() -> Arc<SharedZone> {
    let config = ZoneConfig {
        pods: PodMode::Insecure,
        zonal: true,
        ..ZoneConfig::new("cluster.local").expect("a name")
    };
    let mut zone = Zone::new(config, 1).expect("settings");
    for object in seeds::objects() {
        let kind = match object["kind"].as_str() {
            Some("Service") => portolan_catalog::Kind::Service,
            Some("EndpointSlice") => portolan_catalog::Kind::EndpointSlice,
            _ => continue,
        };
        if let Names::Put { change, .. } = names(kind, &object) {
            zone.apply(*change);
        }
    }
    zone.apply(portolan_dns::NamesChange::Synced);
    Arc::new(SharedZone::new(zone))
}

/// Runs an input. Returns the code of the answer, if there is one.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Option<ResponseCode> {
    match input.split_first() {
        Some((&kind::QUERY, packet)) => query(packet),
        Some((&kind::FILE, bytes)) => {
            file(bytes);
            None
        }
        _ => None,
    }
}

fn query(packet: &[u8]) -> Option<ResponseCode> {
    static SERVER: OnceLock<Server> = OnceLock::new();
    let server = SERVER.get_or_init(|| Server::new(zone()));
    let Some(reply) = server.answer(packet) else {
        assert!(packet.len() < 2 || packet.get(2).is_some_and(|flags| flags & 0x80 != 0));
        return None;
    };
    assert!(reply.len() <= MAX_MESSAGE && reply.len() >= 12);
    assert_eq!(reply[..2], packet[..2], "the id");
    let reply = Message::from_vec(&reply).expect("a message");
    assert_eq!(reply.metadata.message_type, MessageType::Response);
    let code = reply.metadata.response_code;
    let Ok(asked) = Message::from_vec(packet) else {
        return Some(code);
    };
    if let [question] = asked.queries.as_slice()
        && question.query_class() == DNSClass::IN
        && asked.metadata.op_code == OpCode::Query
        && matches!(code, ResponseCode::NoError | ResponseCode::NXDomain)
    {
        assert_eq!(reply.queries, asked.queries);
        // An answer, or the authority of a negative one.
        assert!(!reply.answers.is_empty() || !reply.authorities.is_empty());
        assert!(code == ResponseCode::NoError || reply.answers.iter().all(is_alias));
    }
    Some(code)
}

fn is_alias(record: &hickory_proto::rr::Record) -> bool {
    record.record_type() == RecordType::CNAME
}

/// Checks that a readable file survives saving and loading.
fn file(bytes: &[u8]) {
    let config = ZoneConfig::new("cluster.local").expect("a name");
    let copy = Arc::new(SharedZone::new(Zone::new(config, 0).expect("settings")));
    if replica::load(&copy, bytes).is_err() {
        return;
    }
    let saved = replica::save(&copy);
    let again = Arc::new(SharedZone::new(copy.read().clone()));
    replica::load(&again, &saved).expect("what we wrote");
    assert_eq!(
        replica::digest(&again.read()),
        replica::digest(&copy.read())
    );
}

/// The initial inputs, by name.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let packet = |name: &str, kind, class| {
        let mut query = Query::query(Name::from_ascii(name).expect("a name"), kind);
        query.set_query_class(class);
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.add_query(query);
        message.to_vec().expect("a message")
    };
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let query = |name: &str, kind| of(kind::QUERY, &packet(name, kind, DNSClass::IN));
    vec![
        ("service", query("svc.cluster.local.", RecordType::A)),
        ("apex", query("cluster.local.", RecordType::NS)),
        (
            "version",
            query("dns-version.cluster.local.", RecordType::TXT),
        ),
        ("pointer", query("1.0.96.10.in-addr.arpa.", RecordType::PTR)),
        ("outside", query("example.org.", RecordType::A)),
        ("transfer", query("cluster.local.", RecordType::AXFR)),
        (
            "chaos",
            of(
                kind::QUERY,
                &packet("cluster.local.", RecordType::A, DNSClass::CH),
            ),
        ),
        ("short", of(kind::QUERY, &[0, 1, 0])),
        ("file", of(kind::FILE, &replica::save(&zone()))),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_seeds_reach_what_they_are_for() {
        let seen = seeds()
            .into_iter()
            .map(|(name, input)| (name, check(&input)));
        let seen: BTreeMap<_, _> = seen.collect();
        for (name, code) in [
            ("service", ResponseCode::NoError),
            ("apex", ResponseCode::NoError),
            ("version", ResponseCode::NoError),
            ("pointer", ResponseCode::NXDomain),
            ("outside", ResponseCode::Refused),
            ("transfer", ResponseCode::Refused),
            ("chaos", ResponseCode::Refused),
            ("short", ResponseCode::FormErr),
        ] {
            assert_eq!(seen[name], Some(code), "{name}");
        }
    }
}
