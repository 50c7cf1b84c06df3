// SPDX-License-Identifier: Apache-2.0

//! Changes after which imports are listed for virtual addresses.

use super::*;
use crate::SelectConfig;

/// Three clusters, of which `a` exports `s0`.
fn begun() -> Pipeline {
    let mut pipeline = Pipeline::new(SelectConfig::default());
    pipeline.set_policies(policies("{}", &[]));
    pipeline.set_states(full());
    for cluster in CLUSTERS {
        pipeline.apply(namespace(cluster));
    }
    pipeline.apply(export("a", "s0", single()));
    allocate(&mut pipeline);
    pipeline.flush();
    pipeline
}

/// The names of the imports of `b` that are listed, with their families.
fn wanted(pipeline: &mut Pipeline) -> Option<Vec<(String, usize)>> {
    let all = pipeline.wanted()?;
    let of_b = all["b"].iter();
    let of_b = of_b.map(|one| (one.name.to_string(), one.families.len()));
    Some(of_b.collect())
}

#[test]
fn only_imports_with_other_addresses_are_listed_again() {
    let mut pipeline = begun();
    // Another export makes others of the imports that there are.
    let other = export("b", "s0", single());
    pipeline.apply(other.clone());
    assert_eq!(wanted(&mut pipeline), None);
    let imports = pipeline.flush().records.len();
    assert_eq!(imports, 0, "no cluster has an endpoint");
    let ObjectChange::Put { object, .. } = other else {
        panic!("{other:?}")
    };
    pipeline.apply(ObjectChange::Delete(object.reference()));
    assert_eq!(wanted(&mut pipeline), None);
    // One that comes, gets another family, and goes.
    let s0 = || (String::from("ns/s0"), 1);
    let s1 = |families| (String::from("ns/s1"), families);
    pipeline.apply(export("a", "s1", single()));
    assert_eq!(wanted(&mut pipeline), Some(vec![s0(), s1(1)]));
    // It has none yet.
    pipeline.apply(export("b", "s1", single()));
    assert_eq!(wanted(&mut pipeline), Some(vec![s0(), s1(1)]));
    pipeline.apply(export("c", "s1", single()));
    allocate(&mut pipeline);
    pipeline.apply(export("a", "s1", facts()));
    assert_eq!(wanted(&mut pipeline), Some(vec![s0(), s1(2)]));
    pipeline.apply(export("a", "s1", single()));
    allocate(&mut pipeline);
    for cluster in CLUSTERS {
        let ObjectChange::Put { object, .. } = export(cluster, "s1", single()) else {
            unreachable!("an export is put")
        };
        pipeline.apply(ObjectChange::Delete(object.reference()));
    }
    assert_eq!(wanted(&mut pipeline), Some(vec![s0()]));
    assert_eq!(wanted(&mut pipeline), None);
}
