// SPDX-License-Identifier: Apache-2.0

//! Bounds of fields in the resources' definitions, beside the structure of the types.
//!
//! They stand in the schemas under `x-crd`, which the reader of files does not look at: it has messages of its own for
//! these faults. An API server that refuses an object says the same in other words. Lists have bounds because an API
//! server estimates the cost of a rule by the longest list that there may be.

use serde_json::{Value, json};

/// Most items of a list.
const MOST: u32 = 256;
/// Most requirements of a selector.
const MOST_EXPRESSIONS: u32 = 32;
/// The key of a label, or the name of a property.
const KEY: &str =
    "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

/// One rule in the Common Expression Language, and the message of an object that breaks it.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    rules([(rule, message)])
}

/// Several rules.
pub(crate) fn rules<const N: usize>(all: [(&str, &str); N]) -> Value {
    let all = all
        .map(|(rule, message)| json!({"rule": rule, "message": message}))
        .to_vec();
    json!({"x-kubernetes-validations": all})
}

/// The fields of both.
pub(crate) fn with(mut one: Value, other: Value) -> Value {
    if let (Some(fields), Value::Object(more)) = (one.as_object_mut(), other) {
        fields.extend(more);
    }
    one
}

/// A duration. The longest one is for the controller to check.
pub(crate) fn duration() -> Value {
    json!({"maxLength": 11, "pattern": "^[0-9]{1,9}(ms|s|m|h|d)$"})
}

/// A percentage.
pub(crate) fn percent() -> Value {
    json!({"minimum": 0, "maximum": 100})
}

/// Networks. Their addresses are for the controller to check.
pub(crate) fn networks(least: u32, most: u32) -> Value {
    let network = json!({"maxLength": 49, "pattern": "^[0-9a-fA-F:.]+/[0-9]{1,3}$"});
    let bounds = json!({"maxItems": most, "items": network});
    match least {
        0 => bounds,
        least => with(json!({"minItems": least}), bounds),
    }
}

/// ServiceAccounts, at least one.
pub(crate) fn account() -> Value {
    let account = json!({"maxLength": 317, "pattern": "^[^/]+/[^/]+$"});
    json!({"minItems": 1, "maxItems": 64, "items": account})
}

/// Names, or beginnings of names and `*`.
pub(crate) fn patterns() -> Value {
    let name = json!({"minLength": 1, "maxLength": 253, "pattern": "^[-a-z0-9.]*[*]?$"});
    json!({"maxItems": MOST, "items": name})
}

/// The key of a label or property.
pub(crate) fn key() -> Value {
    json!({"maxLength": 317, "pattern": KEY})
}

/// Keys, at least one.
pub(crate) fn keys() -> Value {
    json!({"minItems": 1, "maxItems": 16, "items": key()})
}

/// Requirements of a selector.
pub(crate) fn expressions() -> Value {
    json!({"maxItems": MOST_EXPRESSIONS})
}

/// Clusters of a tier.
pub(crate) fn members() -> Value {
    let weights = rule(
        "self.all(one, has(one.weight)) || self.all(one, !has(one.weight))",
        "expected all members of the tier to have a weight, or none",
    );
    with(json!({"minItems": 1, "maxItems": MOST}), weights)
}

/// Tiers.
pub(crate) fn tiers() -> Value {
    let last = rule(
        "self.filter(one, has(one.rest) && one.rest).size() == 0 \
         || (self.filter(one, has(one.rest) && one.rest).size() == 1 \
         && has(self[self.size() - 1].rest) && self[self.size() - 1].rest)",
        "expected rest in the last tier",
    );
    with(json!({"maxItems": crate::MAX_TIERS}), last)
}

/// A number of endpoints, or a percentage.
pub(crate) fn threshold() -> Value {
    json!({"minimum": 1, "maximum": u32::MAX, "pattern": "^0*(100|[1-9][0-9]?)%$"})
}
