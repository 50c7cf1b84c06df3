// SPDX-License-Identifier: Apache-2.0

//! Changes in several messages.

/// Messages that carry a change together, each with about so many bytes of items.
#[derive(Debug)]
pub(crate) struct Split<M> {
    full: Vec<M>,
    last: M,
    /// Bytes of the items of the last one.
    size: usize,
    bytes: usize,
}

impl<M: Default + PartialEq> Split<M> {
    /// Begins with a message, which may have other fields already.
    pub(crate) fn new(first: M, bytes: usize) -> Self {
        Self {
            full: Vec::new(),
            last: first,
            size: 0,
            bytes,
        }
    }

    /// Adds an item of so many bytes to the last message.
    pub(crate) fn add(&mut self, length: usize, add: impl FnOnce(&mut M)) {
        add(&mut self.last);
        self.size += length;
        if self.size >= self.bytes {
            self.size = 0;
            self.full.push(std::mem::take(&mut self.last));
        }
    }

    /// The messages in order; none if nothing is in them.
    pub(crate) fn finish(self) -> Vec<M> {
        let Self { mut full, last, .. } = self;
        if last != M::default() {
            full.push(last);
        }
        full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(first: Vec<u8>, items: &[u8]) -> Vec<Vec<u8>> {
        let mut split = Split::new(first, 10);
        for item in items {
            split.add(usize::from(*item), |message: &mut Vec<u8>| {
                message.push(*item)
            });
        }
        split.finish()
    }

    #[test]
    fn a_message_that_is_full_is_followed_by_another_one() {
        assert_eq!(split(Vec::new(), &[4, 5, 3, 9]), [vec![4, 5, 3], vec![9]]);
        assert_eq!(split(Vec::new(), &[12, 10]), [vec![12], vec![10]]);
        assert_eq!(split(Vec::new(), &[]), Vec::<Vec<u8>>::new());
        assert_eq!(split(vec![1], &[]), [vec![1]]);
    }
}
