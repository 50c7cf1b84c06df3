// SPDX-License-Identifier: Apache-2.0

//! Pods: only those with a weight of their own count, and of them only that.

use portolan_catalog::{self as catalog, Kind, Object};
use serde_json::Value;

use super::problems::Problems;
use super::{Converted, Manifest, Names, Pod, Scope, annotations, names};

impl Manifest for Pod {
    const KIND: Kind = Kind::Pod;

    fn convert(self, scope: &Scope) -> Converted {
        let pod = match self.metadata.reference(Self::KIND, &scope.cluster) {
            Ok(pod) => pod,
            Err(problem) => return Converted::refused(None, problem),
        };
        let mut problems = Problems::default();
        match annotations::weight(&self.metadata, &mut problems) {
            Ok(None) => Converted::NotOurs(pod),
            Ok(Some(weight)) => Converted::Put {
                object: Object::Pod(catalog::Pod {
                    key: pod.key,
                    weight,
                }),
                problems: problems.into_vec(),
            },
            // Nothing else of it counts.
            Err(()) => Converted::Refused {
                object: Some(pod),
                problems: problems.into_vec(),
            },
        }
    }

    fn names(&self) -> Names {
        names::of_pod(self)
    }
}

/// Returns `true` if a Pod has a weight annotation.
pub(crate) fn has_weight(pod: &Value) -> bool {
    let annotations = pod.pointer("/metadata/annotations");
    annotations.is_some_and(|all| {
        annotations::WEIGHT
            .iter()
            .any(|name| all.get(name).is_some())
    })
}
