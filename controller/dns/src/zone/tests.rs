// SPDX-License-Identifier: Apache-2.0

//! The contract, row by row, each with neighbours that do not exist.

mod addresses;
pub(crate) mod changes;
pub(crate) mod clusterset;
mod names;
mod options;

use hickory_proto::op::ResponseCode;

use crate::testing::{ask, text};
use crate::{RecordType, Zone};

/// The answer is exactly these records.
fn is(zone: &Zone, name: &str, kind: RecordType, expected: &[&str]) {
    let answer = ask(zone, name, kind);
    assert_eq!(text(&answer.answers), expected, "{name} {kind}");
    assert_eq!(answer.code, ResponseCode::NoError, "{name} {kind}");
    assert_eq!(answer.authorities, [], "{name} {kind}");
}

fn negative(zone: &Zone, name: &str, kind: RecordType, code: ResponseCode) {
    let answer = ask(zone, name, kind);
    assert_eq!(answer.code, code, "{name} {kind}");
    assert_eq!(text(&answer.answers), [""; 0], "{name} {kind}");
    let types: Vec<_> = answer
        .authorities
        .iter()
        .map(|soa| soa.record_type())
        .collect();
    assert_eq!(types, [RecordType::SOA], "{name} {kind}");
}

/// The name exists and has no such record.
fn nodata(zone: &Zone, name: &str, kind: RecordType) {
    negative(zone, name, kind, ResponseCode::NoError);
}

/// The name does not exist for any type but SOA, to which CoreDNS answers otherwise below the apex.
fn nxdomain(zone: &Zone, name: &str) {
    nodata(zone, name, RecordType::SOA);
    for kind in [
        RecordType::A,
        RecordType::AAAA,
        RecordType::SRV,
        RecordType::TXT,
        RecordType::CNAME,
        RecordType::PTR,
        RecordType::NS,
        RecordType::ANY,
    ] {
        negative(zone, name, kind, ResponseCode::NXDomain);
    }
}
