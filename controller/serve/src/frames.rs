//! Cuts a batch into frames of bounded size, ended by a Commit.

use std::collections::VecDeque;

use portolan_proto::encoded::{EncodedFrame, EncodedOwn, EncodedRecords, Frame, size_in_frame};
use portolan_proto::limits::FRAME_BYTES;
use portolan_proto::v1;
use prost::bytes::Bytes;

use crate::{Batch, Changes};

/// The frames of one transition. An item is never cut: one that is larger than a frame may be has
/// a frame of its own.
pub(crate) fn frames(batch: Batch) -> VecDeque<EncodedFrame> {
    let mut frames = VecDeque::new();
    for Changes { put, delete } in pieces(batch.records) {
        frames.push_back(
            Frame::Records(EncodedRecords {
                put,
                delete,
                ..EncodedRecords::default()
            })
            .into(),
        );
    }
    if batch.node.is_some() {
        let own = EncodedOwn {
            node: batch.node,
            ..EncodedOwn::default()
        };
        frames.push_back(Frame::Own(own).into());
    }
    for Changes { put, delete } in pieces(batch.own) {
        let node = None;
        frames.push_back(
            Frame::Own(EncodedOwn {
                put,
                delete,
                node,
                ..EncodedOwn::default()
            })
            .into(),
        );
    }
    let commit = v1::Commit {
        revision: batch.revision,
        snapshot: batch.snapshot,
        records_hash: batch.records_hash.to_bytes().into(),
        own_hash: batch.own_hash.to_bytes().into(),
        ..v1::Commit::default()
    };
    frames.push_back(Frame::Commit(commit).into());
    frames
}

/// Changes of at most [`FRAME_BYTES`] each, or of one item.
fn pieces(changes: Changes) -> Vec<Changes> {
    let mut pieces = Pieces::default();
    for item in changes.put {
        pieces.room_for(&item).put.push(item);
    }
    for item in changes.delete {
        pieces.room_for(&item).delete.push(item);
    }
    pieces.done
}

#[derive(Default)]
struct Pieces {
    done: Vec<Changes>,
    /// The size of the last piece, in bytes.
    size: usize,
}

impl Pieces {
    fn room_for(&mut self, item: &Bytes) -> &mut Changes {
        let item = size_in_frame(item);
        if self.size + item > FRAME_BYTES {
            self.size = 0;
        }
        if self.size == 0 {
            self.done.push(Changes::default());
        }
        self.size += item;
        let last = self.done.len() - 1;
        &mut self.done[last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_model::SetHash;
    use prost::Message;

    fn batch(put: Vec<usize>, delete: Vec<usize>) -> Batch {
        let items = |sizes: Vec<usize>| {
            let items = sizes.into_iter().map(|size| Bytes::from(vec![0; size]));
            items.collect()
        };
        Batch {
            revision: 7,
            snapshot: true,
            records: Changes {
                put: items(put),
                delete: items(delete),
            },
            own: Changes::default(),
            node: Some(v1::NodeInfo::default()),
            records_hash: SetHash(1),
            own_hash: SetHash(2),
        }
    }

    fn is_commit(frame: &EncodedFrame) -> bool {
        matches!(frame.frame, Some(Frame::Commit(_)))
    }

    #[test]
    fn frames_are_of_bounded_size_and_complete() {
        let frames = frames(batch(vec![1000; 500], vec![30; 5000]));
        let mut counts = (0, 0);
        for frame in &frames {
            assert!(frame.encoded_len() <= FRAME_BYTES + 8);
            if let Some(Frame::Records(records)) = &frame.frame {
                counts = (
                    counts.0 + records.put.len(),
                    counts.1 + records.delete.len(),
                );
            }
        }
        assert_eq!(counts, (500, 5000));
        assert!((10..15).contains(&frames.len()), "{}", frames.len());
        assert_eq!(frames.iter().filter(|f| is_commit(f)).count(), 1);
        assert!(frames.back().is_some_and(is_commit));
    }

    #[test]
    fn a_large_item_has_a_frame_of_its_own() {
        let frames = frames(batch(vec![10, 10 * FRAME_BYTES, 10, 10], vec![]));
        let sizes: Vec<usize> = frames
            .iter()
            .filter_map(|frame| match &frame.frame {
                Some(Frame::Records(records)) => Some(records.put.len()),
                _ => None,
            })
            .collect();
        assert_eq!(sizes, [1, 1, 2]);
    }

    #[test]
    fn nothing_is_a_commit() {
        let nothing = Batch {
            node: None,
            ..batch(vec![], vec![])
        };
        let frames = frames(nothing);
        assert_eq!(frames.len(), 1);
        assert!(is_commit(&frames[0]));
    }
}
