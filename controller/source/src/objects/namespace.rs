// SPDX-License-Identifier: Apache-2.0

//! Namespaces: that they exist is all that counts, for DNS and for imports of other clusters. One that is
//! being deleted takes no imports any more.

use portolan_catalog::{Kind, Object};
use portolan_dns as dns;

use super::{Converted, Manifest, Names, Namespace, Scope};

impl Manifest for Namespace {
    const KIND: Kind = Kind::Namespace;

    fn convert(self, scope: &Scope) -> Converted {
        match self.metadata.reference(Self::KIND, &scope.cluster) {
            Ok(namespace) if scope.shares && self.metadata.deletion_timestamp.is_none() => {
                Converted::Put {
                    object: Object::Namespace(namespace.key),
                    problems: Vec::new(),
                }
            }
            Ok(namespace) => Converted::NotOurs(namespace),
            Err(problem) => Converted::refused(None, problem),
        }
    }

    fn names(&self) -> Names {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        Names::put(dns::NamesChange::Namespace(name.to_owned()), Vec::new())
    }
}
