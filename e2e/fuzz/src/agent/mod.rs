// SPDX-License-Identifier: Apache-2.0

//! The agent's fuzz target: the frames of its streams, in sequence.
//!
//! An input is a sequence of frames. A frame that is empty or cannot be decoded ends the stream,
//! and the next begins another. A Commit with an empty `records_hash` is completed with the hashes
//! that a controller would state, as random inputs cannot guess them. Its `own_hash` is cleared
//! instead if it has one byte, as where the node's own part does not change. Any other Commit is
//! passed on unchanged.
//!
//! Invariants: nothing panics. A Commit is accepted only if its hashes equal those of all values
//! sent, recomputed. The table then holds the values sent, and the last good version of each
//! refused record or list. A dropped Commit leaves nothing behind, and the next Hello states no
//! table.

mod model;

use portolan_agent::subscribe::{Committed, Staging, Taken};
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use prost::Message;

use crate::input::Pieces;
use model::Model;

/// The result of an input, from which tests see that the seeds reach their targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Accepted Commits.
    pub taken: usize,
    /// Dropped Commits.
    pub dropped: usize,
    /// Records of the last table.
    pub records: usize,
    /// Records and lists refused in the last table.
    pub refused: usize,
}

/// Runs an input.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Outcome {
    let mut player = Player {
        staging: Staging::new("", "node-1"),
        model: Model::default(),
        outcome: Outcome::default(),
    };
    for piece in Pieces(input) {
        match v1::Frame::decode(piece) {
            Ok(frame) if !piece.is_empty() => player.frame(frame),
            _ => player.begin(),
        }
    }
    player.begin();
    player.outcome
}

struct Player {
    staging: Staging,
    model: Model,
    outcome: Outcome,
}

impl Player {
    /// Begins a new stream. The Hello must state the model's table.
    fn begin(&mut self) {
        self.model.drop_staged();
        let hello = self.staging.begin(v1::Hello::default());
        let Some(position) = self.model.position else {
            let nothing = hello.records_hash.is_empty() && hello.own_hash.is_empty();
            assert!(nothing && hello.revision == 0, "{hello:?}");
            return;
        };
        assert_eq!((hello.epoch, hello.revision), position);
        if self.model.is_sure() {
            let (records, own) = self.model.sums();
            assert_eq!(hello.records_hash, records.to_bytes());
            assert_eq!(hello.own_hash, own.to_bytes());
        }
    }

    fn frame(&mut self, mut frame: v1::Frame) {
        let mut stated = None;
        match &mut frame.frame {
            Some(Frame::Welcome(welcome)) => self.model.epoch = welcome.epoch,
            Some(Frame::Records(records)) => self.model.records(records),
            Some(Frame::Own(own)) => self.model.own(own),
            Some(Frame::Compressed(_)) => self.model.unsure(),
            Some(Frame::Commit(commit)) => {
                let honest = commit.records_hash.is_empty() && self.model.state(commit);
                stated = Some((commit.clone(), honest));
            }
            _ => {}
        }
        let taken = self.staging.take_frame(frame);
        match (stated, taken) {
            (Some((commit, _)), Ok(Taken::Committed(committed))) => {
                self.committed(&commit, &committed);
            }
            (Some((commit, honest)), Err(error)) => {
                let sure = honest && self.model.is_sure();
                assert!(!sure, "a good Commit was dropped: {error}: {commit:?}");
                self.dropped();
            }
            (None, Err(_)) => self.dropped(),
            (None, Ok(Taken::Committed(_))) => panic!("a table without a Commit"),
            (Some(_), Ok(other)) => panic!("a Commit was taken for {other:?}"),
            (None, Ok(_)) => {}
        }
    }

    fn dropped(&mut self) {
        self.outcome.dropped += 1;
        self.model.position = None;
        self.begin();
    }

    fn committed(&mut self, commit: &v1::Commit, committed: &Committed) {
        self.outcome = Outcome {
            taken: self.outcome.taken + 1,
            records: committed.table.records.len(),
            refused: committed.refused.len(),
            ..self.outcome
        };
        assert_eq!(committed.records_hash.to_bytes()[..], commit.records_hash);
        if !commit.own_hash.is_empty() {
            assert_eq!(committed.own_hash.to_bytes()[..], commit.own_hash);
        }
        assert_eq!(
            (committed.epoch, committed.revision, committed.snapshot),
            (self.model.epoch, commit.revision, commit.snapshot)
        );
        self.model.commit(commit);
        if self.model.is_sure() {
            let sums = (committed.records_hash, committed.own_hash);
            assert_eq!(sums, self.model.sums());
            self.model.assert_is(&committed.table);
        }
    }
}
