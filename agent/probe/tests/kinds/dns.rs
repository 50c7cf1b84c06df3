// SPDX-License-Identifier: Apache-2.0

use std::net::{IpAddr, SocketAddr};

use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use portolan_health::Outcome;
use portolan_model::check::{DnsProbe, Probe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rig::{check, failure, refusing, run, serve, silent, slow, times_out};
use crate::udp;

/// Makes the answer to a question: both test addresses, then a change.
fn answer(question: &[u8], change: fn(&mut Message)) -> Vec<u8> {
    let mut message = Message::from_vec(question).unwrap();
    assert!(message.metadata.recursion_desired);
    assert_eq!(message.queries[0].query_type(), RecordType::A);
    let name = message.queries[0].name().clone();
    message.metadata.message_type = MessageType::Response;
    let a = RData::A(A::new(192, 0, 2, 1));
    let aaaa = RData::AAAA(AAAA("2001:db8::1".parse().unwrap()));
    for data in [a, aaaa] {
        message.add_answer(Record::from_rdata(name.clone(), 30, data));
    }
    change(&mut message);
    message.to_vec().unwrap()
}

async fn over_udp(change: fn(&mut Message)) -> SocketAddr {
    udp::answering(move |question| answer(question, change)).await
}

async fn over_tcp(change: fn(&mut Message)) -> SocketAddr {
    serve(move |mut stream| async move {
        let length = stream.read_u16().await?;
        let mut question = vec![0; usize::from(length)];
        stream.read_exact(&mut question).await?;
        let answer = answer(&question, change);
        stream
            .write_u16(u16::try_from(answer.len()).unwrap())
            .await?;
        stream.write_all(&answer).await
    })
    .await
}

fn probe(tcp: bool) -> DnsProbe {
    DnsProbe {
        name: "www.example.org".to_owned(),
        record_type: "A".to_owned(),
        tcp,
        ..DnsProbe::default()
    }
}

async fn told(probe: DnsProbe, change: fn(&mut Message)) -> Outcome {
    let server = match probe.tcp {
        true => over_tcp(change).await,
        false => over_udp(change).await,
    };
    run(&check(Probe::Dns(probe)), server).await
}

#[tokio::test]
async fn a_right_answer_passes() {
    for tcp in [false, true] {
        let answers: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let mut all = probe(tcp);
        all.answers = answers.to_vec();
        assert_eq!(told(all.clone(), |_| {}).await, Outcome::pass());
        all.answers.push("192.0.2.2".parse().unwrap());
        assert_eq!(
            failure(&told(all, |_| {}).await),
            "192.0.2.2 is not in the answer"
        );
    }
}

#[tokio::test]
async fn the_response_code_is_one_of_the_expected() {
    let fail: fn(&mut Message) = |message| message.metadata.response_code = ResponseCode::NXDomain;
    let mut probe = probe(false);
    assert_eq!(
        failure(&told(probe.clone(), fail).await),
        "response code NXDomain"
    );
    probe.rcodes = vec![0, 3];
    assert_eq!(told(probe, fail).await, Outcome::pass());
}

#[tokio::test]
async fn lying_servers_fail() {
    for tcp in [false, true] {
        let outcome = told(probe(tcp), |message| message.metadata.id ^= 1).await;
        assert_eq!(failure(&outcome), "an answer with another id");
        let echo = |message: &mut Message| message.metadata.message_type = MessageType::Query;
        assert_eq!(
            failure(&told(probe(tcp), echo).await),
            "an answer with another id"
        );
        let outcome = told(probe(tcp), |message| message.queries.clear()).await;
        assert_eq!(failure(&outcome), "an answer to another question");
    }
    let garbage = udp::answering(|_| vec![0xff; 40]).await;
    let outcome = run(&check(Probe::Dns(probe(false))), garbage).await;
    assert!(
        failure(&outcome).starts_with("the answer is malformed"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn slow_silent_and_refusing_servers_fail() {
    let silent_udp = udp::answering(|_| Vec::new()).await;
    times_out(Probe::Dns(probe(false)), silent_udp).await;
    times_out(Probe::Dns(probe(true)), silent().await).await;
    times_out(Probe::Dns(probe(true)), slow([1, 0, 7]).await).await;
    let refused = run(&check(Probe::Dns(probe(true))), refusing().await).await;
    assert_eq!(failure(&refused), "connection refused");
    let refused = run(&check(Probe::Dns(probe(false))), udp::closed().await).await;
    assert_eq!(failure(&refused), "connection refused");
    let mut bad = probe(false);
    bad.record_type = "NONE".to_owned();
    let outcome = run(&check(Probe::Dns(bad)), refusing().await).await;
    assert!(matches!(outcome, Outcome::NoVerdict(_)), "{outcome:?}");
}
