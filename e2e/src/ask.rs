// SPDX-License-Identifier: Apache-2.0

//! Requests that fail a test unless they are answered as expected.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::rig::{Answer, Family, Host, Protocol, RequestError};

/// The time without an answer that counts as silence.
pub const BRIEF: Duration = Duration::from_millis(500);
/// The time that an answer may take.
pub const PROMPT: Duration = Duration::from_secs(10);
/// The most requests until each of a few hosts has answered. nftables draws at random: with
/// three hosts, one of them is missing after 20 requests once in a thousand times, after this
/// many never.
const DRAWS: usize = 200;

/// Every combination of family and protocol that every kernel has.
pub fn ways() -> impl Iterator<Item = (Family, Protocol)> {
    Family::ALL
        .into_iter()
        .flat_map(|f| Protocol::ALL.into_iter().map(move |p| (f, p)))
}

/// The one of two addresses, IPv4 first, that is of a family; with a port.
///
/// # Panics
/// If it is no address.
#[must_use]
pub fn address(ips: [&str; 2], family: Family, port: u16) -> SocketAddr {
    let ip = match family {
        Family::V4 => ips[0],
        Family::V6 => ips[1],
    };
    SocketAddr::new(ip.parse().expect("an IP address"), port)
}

/// Sends requests until each of `expected` has answered.
///
/// # Panics
/// If another host answers, if one of them never does, and if a request fails.
pub fn answers(from: &Host, protocol: Protocol, to: SocketAddr, expected: &[&str]) -> Vec<Answer> {
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    let mut seen = BTreeSet::new();
    let mut answers = Vec::new();
    for _ in 0..DRAWS {
        let answer = from
            .request(protocol, to, PROMPT)
            .unwrap_or_else(|error| panic!("{protocol:?} {} -> {to}: {error}", from.name()));
        assert!(
            expected.contains(answer.name.as_str()),
            "{protocol:?} {} -> {to}: {} answered, expected {expected:?}",
            from.name(),
            answer.name
        );
        seen.insert(answer.name.clone());
        answers.push(answer);
        if seen.len() == expected.len() {
            return answers;
        }
    }
    panic!(
        "{protocol:?} {} -> {to}: only {seen:?} of {expected:?} answered",
        from.name()
    );
}

/// Sends a few requests, and asserts that none is answered.
///
/// # Panics
/// If a host answers.
pub fn no_answer(from: &Host, protocol: Protocol, to: SocketAddr) {
    for _ in 0..4 {
        match from.request(protocol, to, BRIEF) {
            // A host without a default route has no route when the VIP's own is gone.
            Err(RequestError::Refused | RequestError::TimedOut | RequestError::Unreachable) => {}
            other => panic!(
                "{protocol:?} {} -> {to}: {other:?}, expected no answer",
                from.name()
            ),
        }
    }
}

/// The sources that an answer of each name saw.
#[must_use]
pub fn sources(answers: &[Answer], name: &str) -> BTreeSet<IpAddr> {
    answers
        .iter()
        .filter(|answer| answer.name == name)
        .map(|answer| answer.source)
        .collect()
}
