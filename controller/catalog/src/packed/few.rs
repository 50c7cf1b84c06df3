// SPDX-License-Identifier: Apache-2.0

//! Lists that mostly have one element.

/// A list that needs no allocation for one element, and no room for more than it has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Few<T> {
    One(T),
    Many(Box<[T]>),
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

impl<T> Few<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => std::slice::from_mut(one),
            Self::Many(many) => many,
        }
    }

    /// Changes the list as a vector; costs O(length).
    pub(crate) fn edit<R>(&mut self, edit: impl FnOnce(&mut Vec<T>) -> R) -> R {
        let mut all = match std::mem::take(self) {
            Self::One(one) => vec![one],
            Self::Many(many) => many.into_vec(),
        };
        let result = edit(&mut all);
        *self = all.into();
        result
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(mut all: Vec<T>) -> Self {
        match all.pop() {
            Some(one) if all.is_empty() => Self::One(one),
            last => {
                all.extend(last);
                Self::Many(all.into_boxed_slice())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_kept_without_a_list() {
        for length in 0..4 {
            let all: Vec<_> = (0..length).collect();
            let mut few = Few::from(all.clone());
            assert_eq!(matches!(few, Few::One(_)), length == 1);
            assert_eq!(few.as_slice(), all);
            assert_eq!(few.as_mut_slice(), all);
            few.edit(|list| list.push(9));
            assert_eq!(few.as_slice(), [&all[..], &[9]].concat());
            assert_eq!(few.edit(Vec::pop), Some(9));
            assert_eq!(few, Few::from(all));
        }
    }
}
