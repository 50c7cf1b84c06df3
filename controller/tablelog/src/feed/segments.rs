// SPDX-License-Identifier: Apache-2.0

//! The snapshot of a cluster's records, in segments that are encoded again only when they change.

use std::ops::Bound;
use std::sync::Arc;

use portolan_model::{Record, RecordKey};
use portolan_proto::encoded::size_in_frame;
use portolan_proto::limits::FRAME_BYTES;
use prost::bytes::Bytes;

use crate::log::{Changes, Journal};
use crate::wire::{Chunks, Writer};

/// All records of a cluster, framed. Each segment is a range of keys, as adjacent names compress
/// best.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    /// The revision of the segments; `None` before the first.
    revision: Option<u64>,
    segments: Vec<Segment>,
    chunks: Arc<Chunks>,
}

#[derive(Debug, Clone)]
struct Segment {
    /// The first key of the segment when it was encoded. The segment covers the keys from there up
    /// to the first key of the next one.
    first: RecordKey,
    framed: Chunks,
}

/// The work to bring the segments to another revision: collected under the log's lock, and done
/// without it.
#[derive(Debug)]
pub(crate) struct Work {
    revision: u64,
    segments_work: Vec<SegmentWork>,
}

#[derive(Debug)]
enum SegmentWork {
    Keep(Segment),
    Make(Vec<(RecordKey, Bytes)>),
}

impl Segments {
    /// The work to bring the segments to `revision`; `None` if they are there.
    pub(crate) fn work(&self, revision: u64, records: &Journal<Record>) -> Option<Work> {
        if self.revision == Some(revision) {
            return None;
        }
        let segments_work = match self.stale(records) {
            Some(stale) => self.segments_work(&stale, records),
            None => vec![make(records.iter())],
        };
        Some(Work {
            revision,
            segments_work,
        })
    }

    /// Does the work.
    pub(crate) fn finish(&mut self, work: Work) {
        let mut segments = Vec::new();
        for part in work.segments_work {
            match part {
                SegmentWork::Keep(segment) => segments.push(segment),
                SegmentWork::Make(records) => cut(records, &mut segments),
            }
        }
        self.chunks = Arc::new(assemble(&mut segments));
        self.segments = segments;
        self.revision = Some(work.revision);
    }

    /// The records, framed, without a Commit.
    pub(crate) fn chunks(&self) -> &Arc<Chunks> {
        &self.chunks
    }

    /// One flag per segment, set if it has changed; `None` if all must be encoded again.
    fn stale(&self, records: &Journal<Record>) -> Option<Vec<bool>> {
        let ideal = records.bytes() / FRAME_BYTES + 1;
        if self.segments.is_empty() || self.segments.len() > 2 * ideal {
            return None;
        }
        let mut stale = vec![false; self.segments.len()];
        for key in records.changed_since(self.revision?)? {
            let after = self
                .segments
                .partition_point(|segment| segment.first <= *key);
            stale[after.saturating_sub(1)] = true;
        }
        Some(stale)
    }

    fn segments_work(&self, stale: &[bool], records: &Journal<Record>) -> Vec<SegmentWork> {
        let mut segments_work = Vec::new();
        let mut index = 0;
        while index < stale.len() {
            if !stale[index] {
                segments_work.push(SegmentWork::Keep(self.segments[index].clone()));
                index += 1;
                continue;
            }
            let first = self.bound(index);
            while stale.get(index) == Some(&true) {
                index += 1;
            }
            let end = match self.segments.get(index) {
                Some(segment) => Bound::Excluded(&segment.first),
                None => Bound::Unbounded,
            };
            segments_work.push(make(records.range(first, end)));
        }
        segments_work
    }

    /// The lower bound of a segment. Keys before the first segment belong to it.
    fn bound(&self, index: usize) -> Bound<&RecordKey> {
        match index {
            0 => Bound::Unbounded,
            _ => Bound::Included(&self.segments[index].first),
        }
    }
}

fn make<'a>(
    records: impl Iterator<Item = (&'a RecordKey, &'a crate::log::Item<Record>)>,
) -> SegmentWork {
    SegmentWork::Make(
        records
            .map(|(key, item)| (key.clone(), item.encoded.clone()))
            .collect(),
    )
}

#[cfg(test)]
impl Work {
    /// The number of segments that are kept, and of runs that are encoded again.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let is_kept = |part: &&SegmentWork| matches!(part, SegmentWork::Keep(_));
        let kept = self.segments_work.iter().filter(is_kept).count();
        (kept, self.segments_work.len() - kept)
    }
}

/// Divides records into segments of similar size, at most about [`FRAME_BYTES`] each.
fn cut(records: Vec<(RecordKey, Bytes)>, segments: &mut Vec<Segment>) {
    let bytes: usize = records.iter().map(|(_, item)| size_in_frame(item)).sum();
    let count = bytes.div_ceil(FRAME_BYTES).max(1);
    let target = bytes / count;
    let mut run = Run::default();
    for (key, item) in records {
        let item_bytes = size_in_frame(&item);
        let full = run.bytes + item_bytes / 2 > target || run.bytes + item_bytes > FRAME_BYTES;
        if full && run.bytes > 0 {
            segments.extend(std::mem::take(&mut run).segment());
        }
        run.bytes += item_bytes;
        run.first.get_or_insert(key);
        run.put.push(item);
    }
    segments.extend(run.segment());
}

#[derive(Default)]
struct Run {
    first: Option<RecordKey>,
    put: Vec<Bytes>,
    bytes: usize,
}

impl Run {
    fn segment(self) -> Option<Segment> {
        let changes = Changes {
            put: self.put,
            ..Changes::default()
        };
        Some(Segment {
            first: self.first?,
            framed: Writer::default().records(changes).finish(),
        })
    }
}

/// Joins segments to chunks, and makes the segments refer to these.
fn assemble(segments: &mut [Segment]) -> Chunks {
    let mut writer = Writer::default();
    let places: Vec<_> = segments
        .iter()
        .map(|segment| writer.framed(&segment.framed))
        .collect();
    let chunks = writer.finish();
    for (segment, (chunk, range)) in segments.iter_mut().zip(places) {
        if let Some(chunk) = chunks.chunks.get(chunk) {
            segment.framed.chunks = vec![chunk.slice(range)];
        }
    }
    chunks
}
