//! What the agent decodes: the frames of its streams, one after the other.
//!
//! An input is a sequence of frames. One that cannot be decoded, and an empty one, ends the stream,
//! and the next begins another. A Commit with an empty `records_hash` gets the hashes that a controller
//! would state, so that inputs are not stopped by hashes that nobody can guess; with one byte as
//! `own_hash` it gets none of that, as where nothing of the node's own changes. Any other Commit is
//! taken as it is.
//!
//! Holds: nothing panics. A Commit is taken only if its hashes are those of all that was sent, added
//! up anew. The table then has what was sent, and of a refused record or list the last good version.
//! A Commit that was not taken leaves nothing behind, and the next Hello says that there is no table.

mod model;

use portolan_agent::subscribe::{Committed, Staging, Taken};
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use prost::Message;

use crate::input::Pieces;
use model::Model;

/// What became of an input: for tests, to see that the seeds reach what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Commits that were taken.
    pub taken: usize,
    /// Commits that were not.
    pub dropped: usize,
    /// The records of the last table.
    pub records: usize,
    /// What could not be taken of it.
    pub refused: usize,
}

/// Plays an input.
///
/// # Panics
/// If something does not hold.
pub fn check(input: &[u8]) -> Outcome {
    let mut player = Player {
        staging: Staging::new(""),
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
    /// A new stream: what the agent says of its table is what the model has.
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
        let taken = self.staging.take(frame);
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
