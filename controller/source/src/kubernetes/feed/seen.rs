// SPDX-License-Identifier: Apache-2.0

//! Objects of one watch as the rest of the feed takes them.

use std::sync::Arc;

use portolan_catalog::{FieldProblem, Kind, ObjectChange, ObjectKey, ObjectRef, ServiceFacts};
use portolan_dns as dns;
use tracing::warn;

use super::Feed;
use crate::deletions::Facts;
use crate::held::facts;
use crate::kubernetes::kinds::Watchable;
use crate::kubernetes::watched::Watched;
use crate::objects::{self, Converted, Names};

/// An event about one object.
#[derive(Debug, Default)]
pub(in super::super) struct News {
    pub(super) change: Option<ObjectChange>,
    pub(super) names: Option<dns::NamesChange>,
    /// Facts that an export needs of a Service; `None` within for one that is gone.
    pub(super) facts: Option<(ObjectKey, Option<Arc<ServiceFacts>>)>,
}

/// A converted object.
pub(super) struct Seen {
    pub(super) key: ObjectKey,
    /// Whether the catalog has it.
    pub(super) is_ours: bool,
    /// Whether DNS has it.
    pub(super) has_names: bool,
    /// Whether it is a Service that can be exported.
    pub(super) has_facts: bool,
    /// `None` if it cannot be read.
    pub(super) facts: Option<Facts>,
    pub(super) news: News,
}

impl Feed {
    /// Reads an object; `None` for one without a name.
    pub(super) fn see<T: Watchable>(&mut self, object: Watched<T>) -> Option<Seen> {
        let names = self.names.is_some().then(|| object.names());
        let reference = object.reference(&self.scope.cluster);
        let is_service = self.exports.is_some() && self.kind == Kind::Service;
        // Of one that cannot be read the last good facts stay.
        let of_export = (is_service && object.is_readable()).then(|| object.facts(&self.scope));
        let has_facts = match &of_export {
            Some(facts) => facts.is_some(),
            None => is_service,
        };
        let converted = object.convert(&self.scope);
        if let Converted::Refused { object, problems } = &converted {
            let key = object.as_ref().map(|object| &object.key);
            self.note_refused(key, problems);
        }
        let object = reference?;
        let is_ours = !matches!(converted, Converted::NotOurs(_));
        if let Some(Names::Put { problems, .. }) = &names
            && !is_ours
            && !problems.is_empty()
        {
            // Problems with other objects are reported by the catalog.
            warn!(%object, ?problems, "left out of the object's DNS records");
        }
        let has_names = matches!(names, Some(Names::Put { .. } | Names::Refused));
        let facts = facts(&converted, names.as_ref());
        let names = match names {
            Some(Names::Put { change, .. }) => Some(*change),
            Some(Names::None) => objects::removed(&object),
            Some(Names::Refused) | None => None,
        };
        let change = converted.into_change();
        let of_export = of_export.map(|facts| (object.key.clone(), facts));
        Some(Seen {
            key: object.key,
            is_ours,
            has_names,
            has_facts,
            facts,
            news: News {
                change,
                names,
                facts: of_export,
            },
        })
    }

    pub(super) fn gone(&self, object: ObjectRef) -> News {
        gone(object, self.names.is_some(), self.exports.is_some())
    }

    fn note_refused(&mut self, key: Option<&ObjectKey>, problems: &[FieldProblem]) {
        self.stats().count_malformed();
        let (kind, cluster) = (self.kind, &self.scope.cluster);
        // Problems with named objects are reported by the catalog.
        if key.is_none() && !std::mem::replace(&mut self.warned_of_nameless, true) {
            warn!(%cluster, %kind, ?problems, "object without a name; counted from now on");
        }
    }
}

/// The event of a deleted object.
pub(super) fn gone(object: ObjectRef, with_names: bool, with_facts: bool) -> News {
    let names = with_names.then(|| objects::removed(&object)).flatten();
    let is_service = with_facts && object.kind == Kind::Service;
    let facts = is_service.then(|| (object.key.clone(), None));
    let change = Some(ObjectChange::Delete(object));
    News {
        change,
        names,
        facts,
    }
}
