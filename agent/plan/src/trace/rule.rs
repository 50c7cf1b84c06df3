// SPDX-License-Identifier: Apache-2.0

//! Rules of [`rules`](crate::rules) as values.

use ipnet::IpNet;
use portolan_model::Protocol;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// All must be true.
    pub(super) matches: Vec<(Match, bool)>,
    /// Target if all are true.
    pub(super) target: Target,
}

/// A match. The rule has it with whether it must be true or false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Match {
    /// `-s`.
    Source(IpNet),
    /// `-i`, with or without a `+`: the interfaces of the node's own pods.
    OwnInterface,
    /// `-p`.
    Protocol(Protocol),
    /// `--tcp-flags SYN,RST SYN`: the first packets of a TCP connection.
    Syn,
    /// `-m set --match-set`.
    Set(String, Vec<Side>),
    /// `-m addrtype --dst-type LOCAL`; `true` with `--limit-iface-in`.
    LocalDestination(bool),
    /// `-m addrtype --src-type LOCAL`.
    LocalSource,
    /// `-m conntrack --ctstate`, `true` if `NEW` is one of the states.
    New(bool),
    /// `-m mark --mark`: value and mask.
    Mark(u32, u32),
    /// `-m connmark --mark`.
    ConnectionMark(u32, u32),
}

/// The end of a packet that a field of a set's key is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// `src`.
    Source,
    /// `dst`.
    Destination,
}

/// Target of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Accept,
    Drop,
    Reject,
    Return,
    Masquerade,
    /// A chain, from which the packet comes back.
    Jump(String),
    /// A chain, from which the packet goes back to the caller of this one.
    Goto(String),
    /// New mark: bits to clear, then bits to flip.
    Mark(u32, u32),
    /// The same of the connection.
    ConnectionMark(u32, u32),
    /// The mark of the set's entry for the destination.
    MapMark(String),
    /// Another size of TCP segments.
    Clamp,
}

impl Rule {
    /// Reads a rule without `-A CHAIN`; `None` if it is none of ours.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (mut matches, mut is_wanted) = (Vec::new(), true);
        while let Some(word) = words.next() {
            let found = match word {
                "!" => {
                    is_wanted = false;
                    continue;
                }
                // The options of a module are unique without its name, but for marks.
                "-m" => match words.next()? {
                    "mark" => mark(&mut words, &mut is_wanted, Match::Mark)?,
                    "connmark" => mark(&mut words, &mut is_wanted, Match::ConnectionMark)?,
                    _ => continue,
                },
                "-s" => Match::Source(words.next()?.parse().ok()?),
                "-i" => words.next().map(|_| Match::OwnInterface)?,
                "-p" => Match::Protocol(words.next()?.to_ascii_uppercase().parse().ok()?),
                "--tcp-flags" if words.next()? == "SYN,RST" && words.next()? == "SYN" => Match::Syn,
                "--match-set" => Match::Set(words.next()?.to_owned(), sides(words.next()?)?),
                "--dst-type" => words.next().map(|_| Match::LocalDestination(false))?,
                "--limit-iface-in" => {
                    matches.pop();
                    Match::LocalDestination(true)
                }
                "--src-type" => words.next().map(|_| Match::LocalSource)?,
                "--ctstate" => Match::New(words.next()?.split(',').any(|state| state == "NEW")),
                "-j" => {
                    let target = target(words.next()?, &mut words)?;
                    return Some(Self { matches, target });
                }
                "-g" => {
                    let target = Target::Goto(words.next()?.to_owned());
                    return Some(Self { matches, target });
                }
                _ => return None,
            };
            matches.push((found, std::mem::replace(&mut is_wanted, true)));
        }
        None
    }
}

fn mark<'a>(
    words: &mut impl Iterator<Item = &'a str>,
    is_wanted: &mut bool,
    to: fn(u32, u32) -> Match,
) -> Option<Match> {
    let mut word = words.next()?;
    if word == "!" {
        *is_wanted = false;
        word = words.next()?;
    }
    let (value, mask) = (word == "--mark")
        .then(|| words.next())
        .flatten()?
        .split_once('/')?;
    Some(to(number(value)?, number(mask)?))
}

fn sides(text: &str) -> Option<Vec<Side>> {
    let side = |text| match text {
        "src" => Some(Side::Source),
        "dst" => Some(Side::Destination),
        _ => None,
    };
    text.split(',').map(side).collect()
}

fn target<'a>(name: &str, options: &mut impl Iterator<Item = &'a str>) -> Option<Target> {
    Some(match name {
        "ACCEPT" => Target::Accept,
        "DROP" => Target::Drop,
        "REJECT" => Target::Reject,
        "RETURN" => Target::Return,
        "MASQUERADE" => Target::Masquerade,
        "MARK" => changed(options, Target::Mark)?,
        "TCPMSS" => (options.next()? == "--clamp-mss-to-pmtu").then_some(Target::Clamp)?,
        "CONNMARK" => changed(options, Target::ConnectionMark)?,
        "SET" => {
            let is_map = options.next() == Some("--map-set");
            Target::MapMark(is_map.then(|| options.next()).flatten()?.to_owned())
        }
        chain => Target::Jump(chain.to_owned()),
    })
}

fn changed<'a>(
    options: &mut impl Iterator<Item = &'a str>,
    to: fn(u32, u32) -> Target,
) -> Option<Target> {
    let (option, value) = (options.next()?, options.next()?);
    Some(match option {
        "--or-mark" => to(number(value)?, number(value)?),
        "--xor-mark" => to(0, number(value)?),
        "--set-xmark" => {
            let (value, mask) = value.split_once('/')?;
            to(number(mask)?, number(value)?)
        }
        _ => return None,
    })
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
