// SPDX-License-Identifier: Apache-2.0

//! One DNS question.

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, RecordType};
use portolan_health::Outcome;
use portolan_model::check::DnsProbe;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fault::{Checked, Stop};
use crate::{Target, socket};

/// The largest answer over UDP, in bytes. The question has no EDNS, so an honest one has 512.
const MAX_UDP: usize = 4_096;

pub(crate) async fn run(probe: &DnsProbe, target: &Target) -> Checked<Outcome> {
    let question = question(probe)?;
    let packet = question.to_vec().map_err(Stop::ours)?;
    let answer = match probe.tcp {
        true => over_tcp(&packet, target).await?,
        false => over_udp(&packet, target).await?,
    };
    let malformed = |error| Stop::fails(format_args!("the answer is malformed: {error}"));
    let answer = Message::from_vec(&answer).map_err(malformed)?;
    judge(probe, &question, &answer)?;
    Ok(Outcome::pass())
}

fn question(probe: &DnsProbe) -> Checked<Message> {
    let bad = |what: &str| Stop::ours(format_args!("{what:?} is not of DNS"));
    let mut name = Name::from_ascii(&probe.name).map_err(|_| bad(&probe.name))?;
    name.set_fqdn(true);
    let record_type = record_type(&probe.record_type).ok_or_else(|| bad(&probe.record_type))?;
    let mut question = Message::new(fastrand::u16(..), MessageType::Query, OpCode::Query);
    question.metadata.recursion_desired = true;
    question.add_query(Query::query(name, record_type));
    Ok(question)
}

/// A type by its name, or by its number as in `TYPE65` (RFC 3597, section 5).
fn record_type(name: &str) -> Option<RecordType> {
    match name.strip_prefix("TYPE") {
        Some(number) => number.parse::<u16>().ok().map(RecordType::from),
        None => name.parse().ok(),
    }
}

async fn over_udp(packet: &[u8], target: &Target) -> Checked<Vec<u8>> {
    let socket = socket::datagrams(target)?;
    // The first datagram: no router can have refused one yet.
    let sent = socket.send(packet).await;
    sent.map_err(Stop::of_call)?;
    let mut answer = vec![0; MAX_UDP];
    let length = socket.recv(&mut answer).await?;
    answer.truncate(length);
    Ok(answer)
}

async fn over_tcp(packet: &[u8], target: &Target) -> Checked<Vec<u8>> {
    let mut stream = socket::connect(target, true).await?;
    let length = u16::try_from(packet.len()).map_err(Stop::ours)?;
    let framed = [&length.to_be_bytes()[..], packet].concat();
    stream.write_all(&framed).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn judge(probe: &DnsProbe, question: &Message, answer: &Message) -> Checked<()> {
    let (asked, told) = (&question.metadata, &answer.metadata);
    if told.message_type != MessageType::Response || told.id != asked.id {
        return Err(Stop::fails("an answer with another id"));
    }
    if answer.queries != question.queries {
        return Err(Stop::fails("an answer to another question"));
    }
    let code: ResponseCode = told.response_code;
    if !probe.rcodes.contains(&u16::from(code)) {
        return Err(Stop::fails(format_args!("response code {code:?}")));
    }
    let has = |address| {
        answer.answers.iter().any(|record| match &record.data {
            RData::A(a) => address == std::net::IpAddr::V4(a.0),
            RData::AAAA(aaaa) => address == std::net::IpAddr::V6(aaaa.0),
            _ => false,
        })
    };
    match probe.answers.iter().find(|address| !has(**address)) {
        None => Ok(()),
        Some(missing) => Err(Stop::fails(format_args!("{missing} is not in the answer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_names_and_numbers() {
        let number = |record_type: &str| {
            let record_type = record_type.to_owned();
            let probe = DnsProbe {
                record_type,
                ..DnsProbe::default()
            };
            question(&probe).map(|question| u16::from(question.queries[0].query_type()))
        };
        assert_eq!(number("AAAA"), Ok(28));
        assert_eq!(number("TYPE65"), Ok(65));
        assert_eq!(number("TYPE4242"), Ok(4_242));
        for bad in ["TYPE", "TYPE65536", "AAA"] {
            assert!(matches!(number(bad), Err(Stop::Ours(_))), "{bad}");
        }
    }
}
