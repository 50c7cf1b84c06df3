// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;
use crate::wire::Messages;

const TABLE: &str = "portolan";

/// Payloads of the messages of requests.
fn payloads(requests: &[Request]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for request in requests {
        let pushed: Result<(), ()> = request.messages(TABLE, |_, _, fill| {
            let mut writer = Writer::default();
            writer.raw(&header(Family::V4));
            fill(&mut writer);
            all.push(writer.as_bytes().to_vec());
            Ok(())
        });
        pushed.unwrap();
    }
    all
}

fn only(request: Request) -> Vec<u8> {
    let mut payloads = payloads(&[request]);
    assert_eq!(payloads.len(), 1);
    payloads.remove(0)
}

#[test]
fn name_of_a_table_is_read() {
    let payload = only(Request::AddTable);
    assert_eq!(reply::read_name(&payload), Ok(TABLE.to_owned()));
    assert!(reply::read_name(&header(Family::V4)).is_err());
}

#[test]
fn a_table_that_sleeps_is_told_from_others() {
    let sleeps = |flags: Option<u32>| {
        let mut writer = Writer::default();
        writer.raw(&header(Family::V4));
        writer.string(1, TABLE);
        if let Some(flags) = flags {
            writer.be32(2, flags);
        }
        let (name, is_dormant) = reply::read_table(writer.as_bytes()).unwrap();
        assert_eq!(name, TABLE);
        is_dormant
    };
    for flags in [None, Some(0), Some(2)] {
        assert!(!sleeps(flags), "{flags:?}");
    }
    for flags in [Some(1), Some(3)] {
        assert!(sleeps(flags), "{flags:?}");
    }
}

#[test]
fn a_chain_with_another_policy_is_no_base_chain_of_ours() {
    let chain = Chain {
        name: "nat-in".into(),
        base: Some(Base {
            kind: ChainKind::Nat,
            hook: Hook::Prerouting,
            priority: -101,
        }),
    };
    let written = only(Request::AddChain(chain.clone()));
    let mut accepts = Writer::default();
    accepts.attribute(5, &1_u32.to_be_bytes());
    let accepts = accepts.as_bytes();
    let mut places = written.windows(accepts.len());
    let place = places.position(|window| window == accepts).unwrap();
    let base = |policy: u8| {
        let mut written = written.clone();
        written[place + accepts.len() - 1] = policy;
        let read = reply::read_chain(&written, TABLE);
        read.unwrap().unwrap().base
    };
    assert_eq!(base(1), chain.base);
    assert_eq!(base(0), None);
}

#[test]
fn sets_come_back() {
    use Field::{Ipv4, Ipv6, Number, Port, Protocol};
    let way = [Ipv4, Protocol, Port];
    let mut ranges = Set::new("allowed", &[Ipv6, Protocol, Port, Ipv6], Data::None);
    ranges.is_interval = true;
    let mut affinity = Set::new("affinity", &way, Data::Fields(vec![Ipv4, Port]));
    affinity.size = Some(1000);
    affinity.is_dynamic = true;
    for set in [
        Set::new("cluster-ips", &[Ipv4], Data::None),
        Set::new("services", &way, Data::Verdict),
        Set::new(
            "endpoints",
            &[Ipv4, Protocol, Port, Number],
            Data::Fields(vec![Ipv4, Port]),
        ),
        ranges,
        affinity,
    ] {
        let payload = only(Request::AddSet(set.clone()));
        assert_eq!(reply::read_set(&payload, TABLE), Ok(Some(set)));
        assert_eq!(reply::read_set(&payload, "another"), Ok(None));
    }
}

#[test]
fn a_map_without_what_nft_wants_to_know_is_the_same_map() {
    let fields = [Field::Ipv4, Field::Number];
    let set = Set::new("endpoints", &fields, Data::Fields(vec![Field::Ipv4]));
    let written = only(Request::AddSet(set.clone()));
    let mut told = Writer::default();
    told.attribute(request::USERDATA, &userdata::of_set(&set).unwrap());
    // It is the last attribute. Older agents wrote none.
    let older = written.strip_suffix(told.as_bytes()).unwrap();
    for payload in [&*written, older] {
        assert_eq!(reply::read_set(payload, TABLE), Ok(Some(set.clone())));
    }
}

#[test]
fn chains_and_rules_come_back() {
    let base = Base {
        kind: ChainKind::Nat,
        hook: Hook::Postrouting,
        priority: -99,
    };
    for base in [None, Some(base)] {
        let name = "a-chain".into();
        let chain = Chain { name, base };
        let payload = only(Request::AddChain(chain.clone()));
        assert_eq!(reply::read_chain(&payload, TABLE), Ok(Some(chain)));
    }
    let rule = vec![
        Expression::payload(Header::Network, 16, 4, Register::FIRST),
        Expression::lookup("services", Lookup::Verdict),
        Expression::verdict(&Verdict::Goto("refusal".into())),
    ];
    let payload = only(Request::AddRule("a-chain".into(), rule.clone()));
    let (chain, read) = reply::read_rule(&payload, TABLE).unwrap().unwrap();
    assert_eq!((&*chain, &read), ("a-chain", &rule));
}

fn key(number: u32) -> Key {
    number.to_be_bytes().into()
}

#[test]
fn elements_come_back_over_several_messages() {
    let values = |number: u32| match number % 5 {
        0 => Value::Present,
        1 => Value::UpTo(key(number + 1)),
        2 => Value::Data(key(number * 2)),
        3 => Value::Verdict(Verdict::Goto(format!("pick-{number}").into())),
        _ => Value::Verdict(Verdict::Drop),
    };
    let elements: Vec<_> = (0..5000).map(|n| (key(n), values(n))).collect();
    let request = Request::AddElements("a-set".into(), elements.clone());
    assert_eq!(request.objects(), elements.len());
    let payloads = payloads(&[request]);
    assert!(payloads.len() > 2, "5,000 elements fit no two messages");
    let mut read = Vec::new();
    for payload in payloads {
        reply::read_elements(&payload, &mut read).unwrap();
    }
    assert_eq!(read, elements);
}

#[test]
fn deletions_have_keys_and_ends_alone() {
    let elements = vec![(key(1), Value::Data(key(7))), (key(2), Value::UpTo(key(3)))];
    let payload = only(Request::DelElements("a-set".into(), elements));
    let mut read = Vec::new();
    reply::read_elements(&payload, &mut read).unwrap();
    let expected = [(key(1), Value::Present), (key(2), Value::UpTo(key(3)))];
    assert_eq!(read, expected);
}

/// Reads a payload as a reply of each kind.
fn read_all(payload: &[u8]) {
    let _ = reply::read_name(payload);
    let _ = reply::read_table(payload);
    let _ = reply::read_generation(payload);
    let _ = reply::read_chain(payload, TABLE);
    let _ = forward::read_drop_chain(payload);
    let _ = forward::read_dormant(payload);
    let _ = reply::read_rule(payload, TABLE);
    let _ = reply::read_set(payload, TABLE);
    let _ = reply::read_elements(payload, &mut Vec::new());
}

proptest! {
    #[test]
    fn no_reply_makes_a_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for message in Messages::new(&bytes).flatten() {
            read_all(message.payload);
        }
        read_all(&bytes);
    }

    #[test]
    fn no_damaged_reply_makes_a_decoder_panic(
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        end in any::<prop::sample::Index>(),
    ) {
        let elements = vec![(key(1), Value::Data(key(7))), (key(2), Value::UpTo(key(3)))];
        let mut payload = only(Request::AddElements("a-set".into(), elements));
        let place = place.index(payload.len());
        payload[place] = byte;
        read_all(&payload);
        read_all(&payload[..end.index(payload.len())]);
    }
}
