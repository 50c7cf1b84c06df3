// SPDX-License-Identifier: Apache-2.0

//! Conversion of ClusterProperties.

use portolan_catalog::{self as catalog, FieldProblem, Kind, Object, Reason};

use super::{ClusterProperty, Converted, Manifest, Scope};

impl Manifest for ClusterProperty {
    const KIND: Kind = Kind::ClusterProperty;

    fn convert(self, scope: &Scope) -> Converted {
        let property = match self.metadata.reference(Self::KIND, &scope.cluster) {
            Ok(property) => property,
            Err(problem) => return Converted::refused(None, problem),
        };
        if !scope.shares {
            return Converted::NotOurs(property);
        }
        let value = self.spec.and_then(|spec| spec.value).unwrap_or_default();
        let most = catalog::ClusterProperty::MAX_VALUE;
        if value.len() > most {
            let message = format!("{} bytes: expected at most {most}", value.len());
            let problem = FieldProblem::new("spec.value", Reason::InvalidValue, message);
            return Converted::refused(Some(property), problem);
        }
        Converted::Put {
            object: Object::ClusterProperty(catalog::ClusterProperty {
                key: property.key,
                value: value.into(),
            }),
            problems: Vec::new(),
        }
    }
}
