// SPDX-License-Identifier: Apache-2.0

//! Content of the Secret of the authority: what it says, and the next change of it. No I/O, no clock.
//!
//! | key | content |
//! |---|---|
//! | `ca.crt`, `ca.key` | the authority that signs |
//! | `next-ca.crt`, `next-ca.key` | its successor, which signs a day after its creation |
//! | `previous-ca.crt` | its predecessor, trusted for a day after it signed last |
//!
//! All times follow from the certificates, so that every replica computes the same.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use portolan_tls::issue::{Authority, IssueError};
use portolan_tls::{CertificateFacts, read_pem};

pub(super) const DAY: Duration = Duration::from_secs(86_400);
/// Certificates are backdated, since clocks differ.
pub(super) const BACKDATED: Duration = Duration::from_secs(300);
/// Time for a bundle to reach all agents, before the successor signs and after the predecessor did.
const SPREAD: Duration = DAY;

const CERT: &str = "ca.crt";
const KEY: &str = "ca.key";
const NEXT_CERT: &str = "next-ca.crt";
const NEXT_KEY: &str = "next-ca.key";
const PREVIOUS_CERT: &str = "previous-ca.crt";

/// The data of a Secret.
pub(super) type Data = BTreeMap<String, Vec<u8>>;

/// A key of the Secret that cannot be used. Its content is not quoted.
#[derive(Debug, thiserror::Error)]
#[error("key {key}: {reason}")]
pub(super) struct ContentError {
    key: &'static str,
    reason: String,
}

impl ContentError {
    fn new(key: &'static str, reason: impl ToString) -> Self {
        Self {
            key,
            reason: reason.to_string(),
        }
    }
}

/// An authority and its times.
#[derive(Debug)]
struct Pair {
    authority: Authority,
    facts: CertificateFacts,
}

impl Pair {
    /// The pair of two keys of the Secret; `None` if both are absent.
    fn read(
        data: &Data,
        cert: &'static str,
        key: &'static str,
    ) -> Result<Option<Self>, ContentError> {
        let (pem, secret) = match (text(data, cert)?, text(data, key)?) {
            (None, None) => return Ok(None),
            (Some(pem), Some(secret)) => (pem, secret),
            (None, Some(_)) => return Err(ContentError::new(cert, "missing")),
            (Some(_), None) => return Err(ContentError::new(key, "missing")),
        };
        let facts = read_pem(pem).map_err(|error| ContentError::new(cert, error))?;
        let authority = Authority::load(pem, secret)
            .map_err(|_| ContentError::new(key, format!("no key of an authority with {cert}")))?;
        if !authority.is_consistent() {
            return Err(ContentError::new(key, format!("not the key of {cert}")));
        }
        Ok(Some(Self { authority, facts }))
    }

    fn created(&self) -> SystemTime {
        self.facts.begins + BACKDATED
    }
}

/// The authorities of a Secret with usable content.
#[derive(Debug)]
pub(super) struct Authorities {
    current: Pair,
    next: Option<Pair>,
    previous: Option<String>,
}

impl Authorities {
    /// The authority that signs.
    pub(super) fn signer(&self) -> &Authority {
        &self.current.authority
    }

    /// Expiry of the authority that signs.
    pub(super) fn expires(&self) -> SystemTime {
        self.current.facts.expires
    }

    /// The certificates that agents must trust, in PEM.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.authority.cert());
        let all = [Some(self.signer().cert()), next, self.previous.as_deref()];
        all.into_iter().flatten().collect()
    }
}

/// A change of the Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// An authority: there is none, or it has expired.
    Create,
    /// A successor, which is trusted and does not sign yet.
    Announce,
    /// The successor signs.
    Promote,
    /// The predecessor is no longer trusted.
    Retire,
}

/// Action for a Secret.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Use it.
    Use(Box<Authorities>),
    /// Write this content first.
    Write(Change, Data),
}

/// Decides about the content of the Secret. A created authority is valid for `days`.
///
/// # Errors
/// If a key cannot be used. It is never replaced: agents may trust it.
pub(super) fn decide(data: &Data, now: SystemTime, days: u32) -> Result<Verdict, ContentError> {
    let current = Pair::read(data, CERT, KEY)?;
    let next = Pair::read(data, NEXT_CERT, NEXT_KEY)?;
    let previous = text(data, PREVIOUS_CERT)?;
    let facts = current.as_ref().map(|pair| &pair.facts);
    let change = due(facts, next.as_ref(), previous.is_some(), now);
    match (change, current) {
        (Some(change), _) => {
            let mut data = data.clone();
            apply(change, &mut data, now, days)
                .map_err(|error| ContentError::new(KEY, error.to_string()))?;
            Ok(Verdict::Write(change, data))
        }
        (None, Some(current)) => Ok(Verdict::Use(Box::new(Authorities {
            current,
            next,
            previous: previous.map(str::to_owned),
        }))),
        // Without an authority, one is created above.
        (None, None) => Err(ContentError::new(CERT, "missing")),
    }
}

/// The change that is due.
fn due(
    current: Option<&CertificateFacts>,
    next: Option<&Pair>,
    has_previous: bool,
    now: SystemTime,
) -> Option<Change> {
    let next_is_valid = next.is_some_and(|next| now < next.facts.expires);
    let Some(current) = current.filter(|current| now < current.expires) else {
        return Some(match next_is_valid {
            true => Change::Promote,
            false => Change::Create,
        });
    };
    match next {
        Some(next) if now >= next.created() + SPREAD => return Some(Change::Promote),
        None if now >= two_thirds(&(current.begins..current.expires)) => {
            return Some(Change::Announce);
        }
        _ => {}
    }
    let trusted = current.begins + BACKDATED + 2 * SPREAD;
    (has_previous && now >= trusted).then_some(Change::Retire)
}

fn apply(change: Change, data: &mut Data, now: SystemTime, days: u32) -> Result<(), IssueError> {
    let create = |data: &mut Data, cert: &str, key: &str| {
        let (_, issued) = Authority::create("portolan", now - BACKDATED..now + DAY * days)?;
        data.insert(cert.to_owned(), issued.cert.into_bytes());
        data.insert(key.to_owned(), issued.key.into_bytes());
        Ok(())
    };
    match change {
        Change::Create => {
            for key in [NEXT_CERT, NEXT_KEY, PREVIOUS_CERT] {
                data.remove(key);
            }
            create(data, CERT, KEY)?;
        }
        Change::Announce => create(data, NEXT_CERT, NEXT_KEY)?,
        Change::Promote => {
            for (from, to) in [(CERT, PREVIOUS_CERT), (NEXT_CERT, CERT), (NEXT_KEY, KEY)] {
                if let Some(value) = data.remove(from) {
                    data.insert(to.to_owned(), value);
                }
            }
        }
        Change::Retire => {
            data.remove(PREVIOUS_CERT);
        }
    }
    Ok(())
}

/// The end of two thirds of a time.
pub(super) fn two_thirds(valid: &Range<SystemTime>) -> SystemTime {
    let life = valid.end.duration_since(valid.start).unwrap_or_default();
    valid.start + life * 2 / 3
}

/// The text of a key; an empty one counts as absent.
fn text<'d>(data: &'d Data, key: &'static str) -> Result<Option<&'d str>, ContentError> {
    let Some(bytes) = data.get(key) else {
        return Ok(None);
    };
    let text = std::str::from_utf8(bytes).map_err(|error| ContentError::new(key, error))?;
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

#[cfg(test)]
mod tests;
