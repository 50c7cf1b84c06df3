// SPDX-License-Identifier: Apache-2.0

//! Values that make metrics appear: a family without a member is not encoded.

use std::collections::BTreeMap;

use portolan_catalog::{FieldProblem, Kind, ObjectKey, ObjectRef, Reason};

/// A DNS message: the question for the address of `a.`.
pub const DNS_QUERY: &[u8] = b"\0\0\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";

/// A problem of some object.
#[must_use]
pub fn problem() -> BTreeMap<ObjectRef, Vec<FieldProblem>> {
    let key = ObjectKey {
        cluster: "".into(),
        namespace: "".into(),
        name: "a".into(),
    };
    let object = ObjectRef {
        kind: Kind::Node,
        key,
    };
    BTreeMap::from([(object, vec![FieldProblem::new("", Reason::Malformed, "")])])
}
