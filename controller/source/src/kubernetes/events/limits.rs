// SPDX-License-Identifier: Apache-2.0

//! Rate limits of Events. Pure: time comes in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_catalog::ObjectRef;

/// Events of one object: two at once, one in five minutes on average.
const OBJECT: Rate = Rate {
    burst: 2,
    period: Duration::from_secs(300),
};
/// Events of all objects of a Namespace.
const NAMESPACE: Rate = Rate {
    burst: 10,
    period: Duration::from_secs(30),
};
/// Events of all objects.
const TOTAL: Rate = Rate {
    burst: 50,
    period: Duration::from_secs(2),
};

/// So many at once, and one more per period.
#[derive(Debug, Clone, Copy)]
struct Rate {
    burst: u32,
    period: Duration,
}

/// The use of a rate: the time at which all of its burst is available again.
type FullAt = Instant;

impl Rate {
    /// The use after one more event; `None` if it is not allowed.
    fn spend(self, full_at: Option<FullAt>, now: Instant) -> Option<FullAt> {
        let next = full_at.unwrap_or(now).max(now) + self.period;
        (next <= now + self.period * self.burst).then_some(next)
    }
}

/// The use of all rates. Its size is bounded by the total rate.
#[derive(Debug, Default)]
pub(super) struct Limits {
    objects: BTreeMap<ObjectRef, FullAt>,
    namespaces: BTreeMap<Arc<str>, FullAt>,
    total: Option<FullAt>,
}

impl Limits {
    /// Returns `true` if an Event about this object may be written now. A refusal takes nothing
    /// from others.
    pub(super) fn allow(&mut self, object: &ObjectRef, now: Instant) -> bool {
        self.objects.retain(|_, full_at| *full_at > now);
        self.namespaces.retain(|_, full_at| *full_at > now);
        let namespace = &object.key.namespace;
        let of_object = OBJECT.spend(self.objects.get(object).copied(), now);
        let of_namespace = NAMESPACE.spend(self.namespaces.get(namespace).copied(), now);
        let of_all = TOTAL.spend(self.total, now);
        let (Some(of_object), Some(of_namespace), Some(of_all)) = (of_object, of_namespace, of_all)
        else {
            return false;
        };
        self.objects.insert(object.clone(), of_object);
        self.namespaces.insert(Arc::clone(namespace), of_namespace);
        self.total = Some(of_all);
        true
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{Kind, ObjectKey};

    use super::*;

    fn service(namespace: usize, name: usize) -> ObjectRef {
        let key = ObjectKey {
            cluster: "".into(),
            namespace: format!("n{namespace}").into(),
            name: format!("s{name}").into(),
        };
        ObjectRef {
            kind: Kind::Service,
            key,
        }
    }

    #[test]
    fn an_object_gets_two_at_once_and_then_one_in_five_minutes() {
        let (mut limits, start) = (Limits::default(), Instant::now());
        let minute = |count| start + Duration::from_secs(60) * count;
        let mut allowed = |minutes| limits.allow(&service(0, 0), minute(minutes));
        let seen = [0, 0, 0, 4, 5, 5, 9, 10].map(&mut allowed);
        assert_eq!(seen, [true, true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_namespace_that_floods_takes_nothing_from_others() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let allowed = (0..1000).filter(|name| limits.allow(&service(0, *name), now));
        assert_eq!(allowed.count(), 10);
        assert!(limits.allow(&service(1, 0), now));
        assert_eq!(limits.objects.len(), 11);
    }

    #[test]
    fn all_together_are_limited_and_forgotten() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let allowed = (0..1000).filter(|namespace| limits.allow(&service(*namespace, 0), now));
        assert_eq!(allowed.count(), 50);
        let later = now + Duration::from_secs(3600);
        assert!(limits.allow(&service(0, 1), later));
        assert_eq!((limits.objects.len(), limits.namespaces.len()), (1, 1));
    }
}
