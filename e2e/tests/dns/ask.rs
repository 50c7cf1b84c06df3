// SPDX-License-Identifier: Apache-2.0

//! Questions and comparable answers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// The name and type of a query.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Question {
    pub(crate) name: String,
    pub(crate) kind: RecordType,
}

impl Question {
    pub(crate) fn new(name: &str, kind: RecordType) -> Self {
        let name = name.to_owned();
        Self { name, kind }
    }

    /// A question for IPv4 addresses.
    pub(crate) fn a(name: &str) -> Self {
        Self::new(name, RecordType::A)
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.kind)
    }
}

/// The compared parts of an answer: all except the order and the SOA's serial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) code: ResponseCode,
    pub(crate) authoritative: bool,
    pub(crate) answers: BTreeSet<String>,
    pub(crate) authorities: BTreeSet<String>,
    pub(crate) additionals: BTreeSet<String>,
}

impl Seen {
    /// Returns `true` if the answer has this code and no records but the SOA.
    pub(crate) fn is_nothing(&self, code: ResponseCode) -> bool {
        self.code == code && self.answers.is_empty()
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (answers, authorities) = (&self.answers, &self.authorities);
        write!(
            f,
            "{:?} aa={} {answers:?} {authorities:?} {:?}",
            self.code, self.authoritative, self.additionals
        )
    }
}

fn line(record: &Record) -> String {
    match &record.data {
        RData::SOA(soa) => format!(
            "{} {} SOA {} {} {} {} {} {}",
            record.name,
            record.ttl,
            soa.mname,
            soa.rname,
            soa.refresh,
            soa.retry,
            soa.expire,
            soa.minimum
        ),
        _ => record.to_string(),
    }
}

/// Sends a query to a name server over UDP.
pub(crate) fn ask(server: SocketAddr, question: &Question, patience: Duration) -> Result<Seen> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect(server)?;
    let mut query = Message::new(7, MessageType::Query, OpCode::Query);
    // Built from bytes, as not all names would parse as a host's name.
    let labels = question.name.trim_end_matches('.').split('.');
    let mut name = Name::from_labels(labels.map(str::as_bytes))?;
    name.set_fqdn(true);
    query.add_query(Query::query(name, question.kind));
    let mut edns = Edns::new();
    edns.set_max_payload(4096);
    query.set_edns(edns);
    socket.send(&query.to_vec()?)?;
    let mut packet = vec![0; 65_535];
    let length = socket.recv(&mut packet)?;
    let reply = Message::from_vec(&packet[..length])?;
    ensure!(!reply.metadata.truncation, "{question}: truncated");
    let lines = |records: &[Record]| records.iter().map(line).collect();
    Ok(Seen {
        code: reply.metadata.response_code,
        authoritative: reply.metadata.authoritative,
        answers: lines(&reply.answers),
        authorities: lines(&reply.authorities),
        additionals: lines(&reply.additionals),
    })
}
