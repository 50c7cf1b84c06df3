// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::read::Message;
use super::*;

fn header(sequence: u32) -> Header {
    Header {
        kind: 0x20,
        flags: REQUEST,
        sequence,
    }
}

#[test]
fn writes_padded_and_nested_attributes() {
    let mut writer = Writer::default();
    writer.message(header(7), |message| {
        message.raw(&[1, 2, 3, 4]);
        message.u8(1, 9);
        message.nest(2, |nest| nest.be16(3, 0x1234));
    });
    let expected: &[u8] = &[
        40, 0, 0, 0, 0x20, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, // nlmsghdr
        1, 2, 3, 4, // the protocol's header
        5, 0, 1, 0, 9, 0, 0, 0, // u8 with padding
        12, 0, 2, 0x80, // nest
        6, 0, 3, 0x40, 0x12, 0x34, 0, 0, // be16, flagged
    ];
    assert_eq!(writer.as_bytes(), expected);
}

#[test]
fn reads_what_it_wrote() {
    let mut writer = Writer::default();
    for sequence in 1..=3 {
        writer.message(header(sequence), |message| {
            message.string(1, "name");
            message.nest(2, |nest| {
                nest.u32(1, sequence);
                nest.be32(2, sequence);
                nest.u16(3, 3);
            });
        });
    }
    let messages: Vec<Message<'_>> = Messages::new(writer.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(messages.len(), 3);
    for (message, sequence) in messages.iter().zip(1..) {
        assert_eq!((message.kind, message.sequence), (0x20, sequence));
        let attributes = Attributes::new(message.payload, 0).unwrap();
        assert_eq!(attributes.get(1).unwrap().string(), "name");
        let nest = attributes.get(2).unwrap().nested();
        assert_eq!(nest.get(1).unwrap().u32(), Ok(sequence));
        assert_eq!(nest.get(2).unwrap().be32(), Ok(sequence));
        assert_eq!(nest.get(3).unwrap().be16(), Ok(0x0300));
        assert_eq!(
            nest.get(3).unwrap().u32(),
            Err(Malformed::Length { kind: 3, len: 2 })
        );
        assert_eq!(nest.get(4).map(drop), Err(Malformed::Missing { kind: 4 }));
    }
}

#[test]
fn refuses_impossible_lengths() {
    for len in [0u32, 15, 17, u32::MAX] {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        let messages: Vec<_> = Messages::new(&bytes)
            .map(|message| message.map(drop))
            .collect();
        assert_eq!(messages, [Err(Malformed::Truncated)], "{len}");
    }
    for bytes in [&[3u8, 0, 1, 0][..], &[9, 0, 1, 0, 0], &[4, 0]] {
        let attributes: Vec<_> = Attributes::new(bytes, 0)
            .unwrap()
            .map(|attribute| attribute.map(drop))
            .collect();
        assert_eq!(attributes, [Err(Malformed::Truncated)], "{bytes:?}");
    }
    assert!(Attributes::new(&[0; 3], 4).is_err());
}

fn read_nests(attributes: Attributes<'_>, depth: u8) {
    for attribute in attributes.flatten() {
        let _ = (
            attribute.u8(),
            attribute.u16(),
            attribute.be16(),
            attribute.u32(),
        );
        let _ = (attribute.be32(), attribute.string());
        if depth > 0 {
            read_nests(attribute.nested(), depth - 1);
        }
    }
}

proptest! {
    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), offset in 0usize..40) {
        for message in Messages::new(&bytes).flatten() {
            read_nests(Attributes::new(message.payload, 0).unwrap(), 3);
        }
        if let Ok(attributes) = Attributes::new(&bytes, offset) {
            read_nests(attributes, 3);
        }
    }

    #[test]
    fn attributes_come_back(payloads in prop::collection::vec(
        (1u16..0x3fff, prop::collection::vec(any::<u8>(), 0..40)), 0..20))
    {
        let mut writer = Writer::default();
        for (kind, payload) in &payloads {
            writer.attribute(*kind, payload);
        }
        let read: Vec<(u16, Vec<u8>)> = Attributes::new(writer.as_bytes(), 0).unwrap()
            .map(|attribute| attribute.map(|a| (a.kind, a.payload.to_vec())))
            .collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read, payloads);
    }
}
