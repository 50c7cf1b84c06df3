// SPDX-License-Identifier: Apache-2.0

//! Numbers of exports and imports.

use super::rules::World;
use super::*;

/// Those that are not 0.
fn nonzero(counts: &BTreeMap<&'static str, usize>) -> Vec<(&'static str, usize)> {
    let counts = counts.iter().map(|(reason, count)| (*reason, *count));
    counts.filter(|(_, count)| *count > 0).collect()
}

fn of_all(numbers: [usize; 3]) -> BTreeMap<Arc<str>, usize> {
    let clusters = CLUSTERS.map(Arc::<str>::from).into_iter();
    clusters.zip(numbers).collect()
}

#[test]
fn exports_and_imports_are_counted_by_cluster_and_reason() {
    let deny = ("ExportPolicy", "{clusters: {names: [c]}, action: Deny}");
    let mut world = World::new("{}", &[deny]);
    let counts = world.counts().unwrap();
    assert_eq!(counts.exports, of_all([1, 1, 0]));
    assert_eq!(counts.imports, of_all([1, 1, 1]));
    assert_eq!(nonzero(&counts.refused["c"]), [("DeniedByPolicy", 1)]);
    let (of_a, conflicts) = (&counts.refused["a"], &counts.conflicts);
    assert_eq!((of_a.len(), nonzero(of_a)), (4, vec![]));
    assert_eq!((conflicts.len(), nonzero(conflicts)), (10, vec![]));

    let local = ServiceFacts {
        internal_local: true,
        ..facts()
    };
    let without_service = ServiceExport {
        requested: true,
        ..ServiceExport::new(key("b", "api"))
    };
    world.apply([
        export("b", "web", local),
        put(Object::ServiceExport(without_service)),
    ]);
    let counts = world.counts().unwrap();
    assert_eq!(counts.exports, of_all([1, 1, 0]));
    assert_eq!(nonzero(&counts.refused["b"]), [("NoService", 1)]);
    let conflict = ("InternalTrafficPolicyConflict", 2);
    assert_eq!(nonzero(&counts.conflicts), [conflict]);
}

#[test]
fn a_change_of_endpoints_has_nothing_counted_again() {
    let mut world = World::new("{}", &[]);
    assert!(world.counts().is_some());
    world.apply([slice("b", "web", vec![Endpoint::new(pod("b", 1))])]);
    assert_eq!(world.counts(), None);
}
