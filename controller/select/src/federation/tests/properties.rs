// SPDX-License-Identifier: Apache-2.0

//! Properties that clusters state about themselves.

use portolan_catalog::{ClusterProperty, Kind, ObjectRef, Reason};

use super::*;

fn property(cluster: &str, name: &str, value: &str) -> ObjectChange {
    let key = ObjectKey {
        namespace: "".into(),
        ..key(cluster, name)
    };
    let value = value.into();
    put(Object::ClusterProperty(ClusterProperty { key, value }))
}

fn gone(cluster: &str, name: &str) -> ObjectChange {
    let ObjectChange::Put { object, .. } = property(cluster, name, "") else {
        panic!("a property")
    };
    ObjectChange::Delete(object.reference())
}

fn imports(pipeline: &mut Pipeline, cluster: &str) -> bool {
    allocate(pipeline);
    pipeline.flush();
    pipeline.named(&key(cluster, "web@clusterset")).is_some()
}

#[test]
fn selectors_read_properties_of_clusters_and_the_operators_come_first() {
    // Only clusters of the tier `prod` import.
    let only = "{clusters: {matchExpressions: [{key: tier, operator: NotIn, values: [prod]}]}, action: Deny}";
    let mut pipeline = Pipeline::default();
    pipeline.set_policies(policies("{}", &[("ImportPolicy", only)]));
    pipeline.set_states(full());
    for cluster in ["a", "b"] {
        pipeline.apply(namespace(cluster));
    }
    pipeline.apply(put(Object::Service(service("a", "web"))));
    pipeline.apply(export("a", "web", facts()));
    assert!(!imports(&mut pipeline, "b"));
    pipeline.apply(property("b", "tier", "prod"));
    assert!(imports(&mut pipeline, "b"));
    pipeline.apply(property("b", "tier", "test"));
    assert!(!imports(&mut pipeline, "b"));
    pipeline.apply(property("b", "tier", "prod"));
    pipeline.apply(gone("b", "tier"));
    assert!(!imports(&mut pipeline, "b"));
    // `region` of `b` is `eu`, whatever it says.
    let region = "{clusters: {matchLabels: {region.topology.k8s.io: mars}}, action: Deny}";
    pipeline.set_policies(policies("{}", &[("ImportPolicy", region)]));
    pipeline.apply(property("b", "region.topology.k8s.io", "mars"));
    assert!(imports(&mut pipeline, "b"));
}

#[test]
fn an_id_that_the_policy_does_not_give_is_a_problem_and_changes_nothing() {
    let mut pipeline = Pipeline::default();
    pipeline.set_policies(policies("{}", &[]));
    pipeline.set_states(full());
    let problems = |pipeline: &mut Pipeline| {
        pipeline.flush();
        let all = pipeline.problems().into_iter();
        let of_kind = all.filter(|(of, _)| of.kind == Kind::ClusterProperty);
        let named =
            of_kind.map(|(of, found): (ObjectRef, _)| (of.key.to_string(), found[0].reason));
        named.collect::<Vec<_>>()
    };
    pipeline.apply(property("a", ClusterProperty::ID, "a"));
    pipeline.apply(property("a", ClusterProperty::SET, "set"));
    assert_eq!(problems(&mut pipeline), []);
    pipeline.apply(property("a", ClusterProperty::ID, "b"));
    pipeline.apply(property("c", ClusterProperty::SET, "other"));
    let expected = [
        ("a/cluster.clusterset.k8s.io".to_owned(), Reason::Conflict),
        ("c/clusterset.k8s.io".to_owned(), Reason::Conflict),
    ];
    assert_eq!(problems(&mut pipeline), expected);
    pipeline.apply(gone("a", ClusterProperty::ID));
    pipeline.apply(property("c", ClusterProperty::SET, "set"));
    assert_eq!(problems(&mut pipeline), []);
}
