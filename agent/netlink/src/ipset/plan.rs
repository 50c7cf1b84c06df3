// SPDX-License-Identifier: Apache-2.0

//! Conversion of requests to messages; pure.
//!
//! The kernel stops at the first bad entry of a message, so the entries after it are sent again.
//! They must not be overtaken by a later request. A batch is therefore cut into segments, each of
//! which is complete before the next one begins.

use std::ops::Range;

use super::Request;

/// Limit of entries in a message: at 84 bytes at most each, they fit an attribute of 65535 bytes.
const ENTRIES_MAX: usize = 700;

/// A message: a request with a range of its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The request's index.
    pub(super) request: usize,
    /// Its entries in this message; empty for a request without entries.
    pub(super) entries: Range<usize>,
}

impl Part {
    /// The entries after the one at `bad`, one message for each, so that any number of bad entries
    /// takes no more than two rounds.
    pub(super) fn after(&self, bad: usize) -> impl Iterator<Item = Self> + use<> {
        let request = self.request;
        (bad + 1..self.entries.end).map(move |entry| Self {
            request,
            entries: entry..entry + 1,
        })
    }
}

/// The messages of each segment. A segment ends where entries were added or deleted and something
/// else follows.
pub(super) fn segments(requests: &[Request]) -> Vec<Vec<Part>> {
    requests
        .chunk_by(|one, next| !has_entries(one) || one.kind() == next.kind())
        .scan(0, |start, segment| {
            let first = *start;
            *start += segment.len();
            Some(
                (first..)
                    .zip(segment)
                    .flat_map(|(index, request)| parts(index, request))
                    .collect(),
            )
        })
        .collect()
}

fn has_entries(request: &Request) -> bool {
    matches!(request, Request::Add { .. } | Request::Del { .. })
}

fn parts(index: usize, request: &Request) -> Vec<Part> {
    if !has_entries(request) {
        return vec![Part {
            request: index,
            entries: 0..0,
        }];
    }
    let len = request.entries().len();
    let part = |start| Part {
        request: index,
        entries: start..len.min(start + ENTRIES_MAX),
    };
    (0..len).step_by(ENTRIES_MAX).map(part).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::ipset::SetEntry;

    use super::*;

    fn add(count: usize) -> Request {
        Request::Add {
            name: "a".to_owned(),
            entries: Arc::new(vec![SetEntry::Port(1); count]),
        }
    }

    fn del(count: usize) -> Request {
        Request::Del {
            name: "a".to_owned(),
            entries: Arc::new(vec![SetEntry::Port(1); count]),
        }
    }

    fn flush() -> Request {
        Request::Flush {
            name: "a".to_owned(),
        }
    }

    fn shape(requests: &[Request]) -> Vec<Vec<(usize, Range<usize>)>> {
        let pair = |part: Part| (part.request, part.entries);
        segments(requests)
            .into_iter()
            .map(|s| s.into_iter().map(pair).collect())
            .collect()
    }

    #[test]
    fn nothing_overtakes_entries() {
        assert_eq!(shape(&[]), Vec::<Vec<_>>::new());
        assert_eq!(
            shape(&[
                flush(),
                add(1),
                add(2),
                flush(),
                flush(),
                del(1),
                del(0),
                add(1),
                del(1)
            ]),
            [
                vec![(0, 0..0), (1, 0..1), (2, 0..2)],
                vec![(3, 0..0), (4, 0..0), (5, 0..1)],
                vec![(7, 0..1)],
                vec![(8, 0..1)],
            ]
        );
    }

    #[test]
    fn splits_long_lists() {
        assert_eq!(
            shape(&[add(1500)]),
            [vec![(0, 0..700), (0, 700..1400), (0, 1400..1500)]]
        );
        let part = Part {
            request: 3,
            entries: 700..704,
        };
        let rest: Vec<_> = part.after(701).map(|part| part.entries).collect();
        assert_eq!(rest, [702..703, 703..704]);
        assert_eq!(part.after(703).count(), 0);
    }
}
