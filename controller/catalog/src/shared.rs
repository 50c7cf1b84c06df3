// SPDX-License-Identifier: Apache-2.0

//! Values that many objects have alike, kept once.

use std::borrow::Borrow;
use std::hash::Hash;
use std::sync::Arc;

use crate::quick::QuickSet;

/// The size below which unused values are not collected.
const FEW: usize = 64;

/// Equal values as one allocation. Unused values are dropped when the set has doubled, so that a
/// value costs O(1) and at most half of the set is unused.
#[derive(Debug)]
pub(crate) struct Shared<T: ?Sized> {
    values: QuickSet<Arc<T>>,
    /// Number of values in use at the last look.
    used: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self {
            values: QuickSet::default(),
            used: 0,
        }
    }
}

impl<T: ?Sized + Eq + Hash> Shared<T> {
    /// The stored value that is equal to this one, which is stored if there is none.
    pub(crate) fn get<V: Borrow<T> + Into<Arc<T>>>(&mut self, value: V) -> Arc<T> {
        if let Some(known) = self.values.get(value.borrow()) {
            return Arc::clone(known);
        }
        if self.values.len() >= 2 * self.used.max(FEW) {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.used = self.values.len();
        }
        let value = value.into();
        self.values.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        let mut shared = Shared::<str>::default();
        let a = shared.get("a".to_owned());
        let b = shared.get("a".to_owned());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(shared.values.len(), 1);
    }

    #[test]
    fn unused_values_are_dropped() {
        let mut shared = Shared::<str>::default();
        let kept: Vec<_> = (0..FEW).map(|i| shared.get(format!("kept {i}"))).collect();
        for i in 0..100 * FEW {
            shared.get(format!("dropped {i}"));
            assert!(shared.values.len() <= 2 * FEW + 1);
        }
        for value in kept {
            assert!(shared.values.contains(&*value));
        }
    }
}
