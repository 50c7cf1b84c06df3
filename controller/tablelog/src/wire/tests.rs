// SPDX-License-Identifier: Apache-2.0

use portolan_model::SetHash;
use portolan_proto::encoded::encode;
use portolan_proto::limits::FRAME_BYTES;

use super::*;
use crate::testing::decode;

/// Records with names of these lengths.
fn items(lengths: &[usize]) -> Vec<Bytes> {
    let record = |length: &usize| {
        // Random names, which do not compress.
        let mut state = *length as u64 + 1;
        let name = (0..*length).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            char::from(b'!' + u8::try_from((state >> 33) % 90).unwrap())
        });
        let key = v1::RecordKey {
            service: name.collect(),
            ..v1::RecordKey::default()
        };
        v1::Record {
            key: Some(key),
            ..v1::Record::default()
        }
    };
    lengths
        .iter()
        .map(|n| record(n).encode_to_vec().into())
        .collect()
}

fn written(put: &[usize], delete: usize) -> Chunks {
    let changes = Changes {
        put: items(put),
        delete: vec![Bytes::from(vec![10, 2, b'n', b's']); delete],
        ..Changes::default()
    };
    let own = OwnChanges {
        info: Some(encode(&v1::NodeInfo::default())),
        ..OwnChanges::default()
    };
    let commit = v1::Commit {
        revision: 7,
        records_hash: SetHash(1).to_bytes().into(),
        ..v1::Commit::default()
    };
    Writer::default()
        .records(changes)
        .own(own, false)
        .commit(commit)
        .finish()
}

fn records(frames: &std::collections::VecDeque<v1::Frame>) -> Vec<&v1::Records> {
    let records = frames.iter().filter_map(|frame| match &frame.frame {
        Some(v1::frame::Frame::Records(records)) => Some(records),
        _ => None,
    });
    records.collect()
}

#[test]
fn chunks_are_bounded_and_complete() {
    let chunks = written(&[1000; 500], 5000);
    assert_eq!(chunks.items, 5500);
    for chunk in &chunks.chunks {
        assert!(chunk.len() <= CHUNK_BYTES + 16);
    }
    let frames = decode(chunks.chunks.clone());
    assert_eq!(frames.len(), chunks.frames);
    let records = records(&frames);
    assert_eq!(records.iter().map(|r| r.put.len()).sum::<usize>(), 500);
    assert_eq!(records.iter().map(|r| r.delete.len()).sum::<usize>(), 5000);
    assert!(
        frames
            .iter()
            .all(|frame| frame.encoded_len() <= FRAME_BYTES + 8)
    );
}

#[test]
fn a_long_item_is_never_cut() {
    let chunks = written(&[10, 10 * FRAME_BYTES, 10, 10], 0);
    let frames = decode(chunks.chunks);
    let puts: Vec<usize> = records(&frames).iter().map(|r| r.put.len()).collect();
    assert_eq!(puts, [1, 1, 2]);
}

#[test]
fn a_small_transition_is_one_chunk_that_can_be_parted_from_its_commit() {
    let chunks = written(&[30], 1);
    assert_eq!((chunks.chunks.len(), chunks.frames), (1, 3));
    let before = decode([chunks.chunks[0].slice(..chunks.commit_at)]);
    assert_eq!(before.len(), 2);
    let commit = decode([chunks.chunks[0].slice(chunks.commit_at..)]);
    assert!(matches!(
        commit[0].frame,
        Some(v1::frame::Frame::Commit(v1::Commit { revision: 7, .. }))
    ));
}

#[test]
fn frames_are_compressed_where_it_saves_bytes() {
    let key = |i: u32| v1::RecordKey {
        service: format!("service-{i}"),
        ..v1::RecordKey::default()
    };
    let put = (0..1000).map(|i| v1::Record {
        key: Some(key(i)),
        ..v1::Record::default()
    });
    let changes = Changes {
        put: put.map(|record| record.encode_to_vec().into()).collect(),
        ..Changes::default()
    };
    let raw = changes.bytes();
    let chunks = Writer::default().records(changes).finish();
    assert!(chunks.bytes() < raw / 2, "{} of {raw}", chunks.bytes());
    assert_eq!(chunks.commit_at, chunks.chunks[0].len());
    let frames = decode(chunks.chunks);
    assert_eq!(records(&frames)[0].put.len(), 1000);
}
