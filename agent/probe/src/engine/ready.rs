// SPDX-License-Identifier: Apache-2.0

//! Items of a stream that are ready at the same time.

use std::task::{Context, Poll};

use futures_util::stream::{Stream, StreamExt as _};

/// Takes all items that a stream has now. It is pending as long as there is none, also after the stream's end: more may
/// be added to it.
pub(super) fn all<S: Stream + Unpin>(
    stream: &mut S,
    context: &mut Context<'_>,
) -> Poll<Vec<S::Item>> {
    let mut items = Vec::new();
    while let Poll::Ready(Some(item)) = stream.poll_next_unpin(context) {
        items.push(item);
    }
    match items.is_empty() {
        true => Poll::Pending,
        false => Poll::Ready(items),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, ready};
    use std::task::Waker;

    use futures_util::stream::FuturesUnordered;

    use super::*;

    #[test]
    fn all_that_is_ready_is_taken_at_once() {
        let mut context = Context::from_waker(Waker::noop());
        let mut stream: FuturesUnordered<Ready<u8>> = (1..=3).map(ready).collect();
        let Poll::Ready(mut items) = all(&mut stream, &mut context) else {
            panic!("nothing is ready");
        };
        items.sort_unstable();
        assert_eq!(items, [1, 2, 3]);
        assert_eq!(all(&mut stream, &mut context), Poll::Pending);
        stream.push(ready(4));
        assert_eq!(all(&mut stream, &mut context), Poll::Ready(vec![4]));
    }
}
