// SPDX-License-Identifier: Apache-2.0

//! ClusterProperties.

use super::*;

#[test]
fn a_property_is_ours_where_services_are_shared() {
    let scope = Scope {
        shares: true,
        ..Scope::default()
    };
    let of = |value: Value, scope: &Scope| {
        let value = json!({"metadata": {"name": "tier"}, "spec": value});
        convert(Kind::ClusterProperty, &value, scope)
    };
    let Converted::Put { object, problems } = of(json!({"value": "prod"}), &scope) else {
        panic!("a property")
    };
    let Object::ClusterProperty(property) = object else {
        panic!("{object:?}")
    };
    assert_eq!((&*property.key.name, &*property.value), ("tier", "prod"));
    assert!(problems.is_empty() && property.key.namespace.is_empty());
    let other = of(json!({"value": "prod"}), &Scope::default());
    assert!(matches!(other, Converted::NotOurs(_)), "{other:?}");
    let Converted::Refused { problems, .. } = of(json!({"value": "x".repeat(1025)}), &scope) else {
        panic!("too long")
    };
    assert_eq!(problems[0].field, "spec.value");
}
