// SPDX-License-Identifier: Apache-2.0

//! DNS messages: from the bytes of a query to the bytes of its reply. Any bytes give a legal
//! reply, or none.

use hickory_proto::ProtoError;
use hickory_proto::op::{
    Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode, emit_message_parts,
};
use hickory_proto::rr::{DNSClass, Name, Record};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder};

use crate::zone::Answer;

/// The longest message (RFC 1035 §4.2.2), in bytes.
pub const MAX_MESSAGE: usize = 65_535;

/// The advertised UDP payload (DNS flag day 2020), in bytes. Without effect over gRPC: CoreDNS
/// limits its clients' packets.
const UDP_PAYLOAD: u16 = 1232;

/// The length of a message's header (RFC 1035 §4.1.1), in bytes.
const HEADER: usize = 12;

/// A pointer (RFC 1035 §4.1.4) to the question's name, right after the header.
const QUESTION: u16 = 0xc000 | 12;

/// The flag of a response, in the third byte.
const QR: u8 = 0x80;

/// The flag of a response that is not complete, in the third byte.
const TC: u8 = 0x02;

/// A query that can be answered: one question of class IN.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    metadata: Metadata,
    /// The question.
    pub(crate) query: Query,
    edns: Option<Edns>,
}

/// A query without an answer, with an error reply or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejected(pub(crate) Option<Vec<u8>>);

impl Request {
    /// Reads a query.
    pub(crate) fn parse(packet: &[u8]) -> Result<Self, Rejected> {
        if packet.len() < 2 || packet.get(2).is_some_and(|flags| flags & QR != 0) {
            // Messages without an id, and replies, are not answered.
            return Err(Rejected(None));
        }
        if packet.len() < HEADER || packet.len() > MAX_MESSAGE {
            return Err(bare(packet, ResponseCode::FormErr));
        }
        if packet[2] & 0x78 != 0 {
            return Err(bare(packet, ResponseCode::NotImp));
        }
        if packet[4..6] != [0, 1] {
            return Err(bare(packet, ResponseCode::FormErr));
        }
        let Ok(mut message) = Message::from_vec(packet) else {
            return Err(bare(packet, ResponseCode::FormErr));
        };
        let Some(query) = message.queries.pop() else {
            return Err(bare(packet, ResponseCode::FormErr));
        };
        let request = Self {
            metadata: message.metadata,
            query,
            edns: message.edns,
        };
        request.check()
    }

    fn check(self) -> Result<Self, Rejected> {
        let code = match &self.edns {
            Some(edns) if edns.version() > 0 => ResponseCode::BADVERS,
            _ if self.query.query_class() != DNSClass::IN => ResponseCode::Refused,
            _ => return Ok(self),
        };
        Err(Rejected(Some(self.reply(Answer::of(code)))))
    }

    /// The reply with an answer. A reply that would be too long has fewer records, and is marked as
    /// truncated unless only additional ones are missing.
    pub(crate) fn reply(&self, answer: Answer) -> Vec<u8> {
        let mut metadata = Metadata::response_from_request(&self.metadata);
        metadata.response_code = answer.code;
        // A refusal is not authoritative.
        metadata.authoritative = answer.code != ResponseCode::Refused;
        let mut message = Message::new(metadata.id, MessageType::Response, OpCode::Query);
        message.metadata = metadata;
        message.add_query(self.query.clone());
        message.answers = answer.answers;
        message.authorities = answer.authorities;
        message.additionals = answer.additionals;
        message.edns = self.edns.as_ref().map(reply_edns);
        encode(message)
    }
}

fn reply_edns(request: &Edns) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(UDP_PAYLOAD);
    edns.set_dnssec_ok(request.flags().dnssec_ok);
    edns
}

fn encode(mut message: Message) -> Vec<u8> {
    loop {
        let Ok(bytes) = bytes_of(&message) else {
            return failure(&message);
        };
        // The encoder stops where the message would become too long, and sets this flag.
        let cut = bytes.get(2).is_some_and(|flags| flags & TC != 0);
        if !cut || message.metadata.truncation && written(&bytes) == message.answers.len() {
            return bytes;
        }
        if !message.additionals.is_empty() {
            message.additionals.clear();
            continue;
        }
        message.metadata.truncation = true;
        // Room for the records after the answers.
        let room = written(&bytes).saturating_sub(1 + 4 * message.authorities.len());
        message
            .answers
            .truncate(room.min(message.answers.len().saturating_sub(1)));
    }
}

fn bytes_of(message: &Message) -> Result<Vec<u8>, ProtoError> {
    let question = message.queries.first().map(Query::name);
    let answers = message
        .answers
        .iter()
        .map(|record| Answered { record, question });
    let answers: Vec<_> = answers.collect();
    let mut bytes = Vec::with_capacity(512);
    emit_message_parts(
        &message.metadata,
        &mut message.queries.iter(),
        &mut answers.iter(),
        &mut message.authorities.iter(),
        &mut message.additionals.iter(),
        message.edns.as_ref(),
        None,
        &mut BinEncoder::new(&mut bytes),
    )?;
    Ok(bytes)
}

/// A record of the answer. Nearly all have the question's name, which is right after the header:
/// they point to it. (The encoder does that too, but for the first 120 names only: 1,400 addresses
/// would be too many for a message, not 4,000.)
struct Answered<'a> {
    record: &'a Record,
    question: Option<&'a Name>,
}

impl BinEncodable for Answered<'_> {
    fn emit(&self, encoder: &mut BinEncoder<'_>) -> Result<(), ProtoError> {
        let record = self.record;
        if !self.question.is_some_and(|name| name.eq_case(&record.name)) {
            return record.emit(encoder);
        }
        encoder.emit_u16(QUESTION)?;
        record.record_type().emit(encoder)?;
        record.dns_class.emit(encoder)?;
        encoder.emit_u32(record.ttl)?;
        let length = encoder.place::<u16>()?;
        record.data.emit(encoder)?;
        let written = u16::try_from(encoder.len_since_place(&length));
        length.replace(
            encoder,
            written.map_err(|_| ProtoError::Message("too long"))?,
        )
    }
}

/// Returns the number of answers of the encoded message.
fn written(bytes: &[u8]) -> usize {
    match bytes.get(6..8) {
        Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])),
        _ => 0,
    }
}

/// The reply if a record cannot be encoded: no fault of the question's.
fn failure(message: &Message) -> Vec<u8> {
    let id = message.metadata.id.to_be_bytes();
    let [high, low] = id;
    let header = [high, low, 0];
    let Rejected(reply) = bare(&header, ResponseCode::ServFail);
    reply.unwrap_or_default()
}

/// A reply of nothing but a header.
fn bare(packet: &[u8], code: ResponseCode) -> Rejected {
    let mut reply = vec![0; HEADER];
    let id = packet.len().min(2);
    reply[..id].copy_from_slice(&packet[..id]);
    // The operation and "recursion desired" are the query's.
    reply[2] = QR | packet.get(2).map_or(0, |flags| flags & 0x79);
    reply[3] = code.low();
    Rejected(Some(reply))
}

#[cfg(test)]
mod tests;
