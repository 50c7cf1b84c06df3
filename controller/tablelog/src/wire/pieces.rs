// SPDX-License-Identifier: Apache-2.0

//! Division of changes into messages of bounded size.

use portolan_proto::encoded::size_in_frame;
use portolan_proto::limits::FRAME_BYTES;
use prost::bytes::Bytes;

use crate::log::Changes;

/// Divides changes into pieces of at most [`FRAME_BYTES`], or of one longer item: an item is never
/// cut.
pub(super) fn pieces(changes: Changes) -> Vec<Changes> {
    let mut pieces = Pieces::default();
    for item in changes.put {
        pieces.room_for(&item).put.push(item);
    }
    for item in changes.delete {
        pieces.room_for(&item).delete.push(item);
    }
    for item in changes.patch {
        pieces.room_for(&item).patch.push(item);
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
