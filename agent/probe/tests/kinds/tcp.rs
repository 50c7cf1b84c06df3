// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_health::Outcome;
use portolan_model::check::{Probe, Step, TcpProbe};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;

use crate::rig::{answering, check, failure, refusing, run, serve, silent, slow, times_out};

fn steps(steps: &[(Option<&str>, Option<&str>)]) -> Probe {
    let step = |(send, expect): &(Option<&str>, Option<&str>)| Step {
        send: send.map(|text| text.as_bytes().to_vec()),
        expect: expect.map(str::to_owned),
    };
    Probe::Tcp(TcpProbe {
        steps: steps.iter().map(step).collect(),
    })
}

#[tokio::test]
async fn a_connection_passes_and_a_refusal_fails() {
    let check = check(steps(&[]));
    assert_eq!(run(&check, silent().await).await, Outcome::pass());
    let refused = run(&check, refusing().await).await;
    assert_eq!(refused, Outcome::fail("connection refused"));
}

#[tokio::test]
async fn a_probe_closes_by_rst() {
    let seen = Arc::new(Notify::new());
    let told = Arc::clone(&seen);
    let server = serve(move |mut stream| {
        let told = Arc::clone(&told);
        async move {
            let end = stream.read(&mut [0]).await.unwrap_err();
            assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
            told.notify_one();
            Ok(())
        }
    })
    .await;
    assert_eq!(run(&check(steps(&[])), server).await, Outcome::pass());
    seen.notified().await;
}

#[tokio::test]
async fn a_conversation_goes_step_by_step() {
    let server = serve(|mut stream| async move {
        // Both answers in one packet: what follows a match belongs to the next step.
        stream.write_all(b"220 hello\r\n").await?;
        let mut line = [0; 6];
        stream.read_exact(&mut line).await?;
        assert_eq!(&line, b"NOOP\r\n");
        stream.write_all(b"250 ok\r\n221 bye\r\n").await?;
        stream.read(&mut line).await.map(|_| ())
    })
    .await;
    let good = [
        (None, Some("^220 .*\r\n")),
        (Some("NOOP\r\n"), Some("^250 .*?\r\n")),
        (None, Some("^221")),
    ];
    assert_eq!(run(&check(steps(&good)), server).await, Outcome::pass());
}

#[tokio::test]
async fn a_mail_server_with_replies_of_several_lines_passes() {
    let server = serve(|mut stream| async move {
        stream.write_all(b"220-a\r\n220 mail ESMTP\r\n").await?;
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).await?;
        assert_eq!(&hello, b"HELO localhost\r\n");
        stream.write_all(b"250-mail\r\n250 HELP\r\n").await?;
        let mut quit = [0; 6];
        stream.read_exact(&mut quit).await?;
        stream.write_all(b"221 bye\r\n").await
    })
    .await;
    // The steps that importers make.
    let reply = |code: &str| format!(r"(?-u)^(?:{code}-[^\n]*\n)*{code}(?: [^\n]*)?\r?\n");
    let (ready, done, bye) = (reply("220"), reply("250"), reply("221"));
    let mail = [
        (None, Some(&*ready)),
        (Some("HELO localhost\r\n"), Some(&*done)),
        (Some("QUIT\r\n"), Some(&*bye)),
    ];
    assert_eq!(run(&check(steps(&mail)), server).await, Outcome::pass());
}

#[tokio::test]
async fn a_wrong_or_endless_answer_fails() {
    let ask = |expect: &'static str| steps(&[(Some("PING\n"), Some(expect))]);
    let wrong = run(&check(ask("PONG")), answering("GONE").await).await;
    assert_eq!(failure(&wrong), "closed before a match of \"PONG\"");
    let endless = answering(vec![b'x'; 1 << 20]).await;
    let endless = run(&check(ask("PONG")), endless).await;
    assert_eq!(failure(&endless), "no match of \"PONG\" in 64 KiB");
    let broken = run(&check(ask("(")), answering("PONG").await).await;
    assert!(matches!(broken, Outcome::NoVerdict(_)), "{broken:?}");
}

#[tokio::test]
async fn slow_and_silent_servers_fail_in_time() {
    let banner = || steps(&[(None, Some("^220 .*\n"))]);
    times_out(banner(), slow("220 hello world\n").await).await;
    times_out(banner(), silent().await).await;
}

#[tokio::test]
async fn a_missing_route_is_no_verdict() {
    // The kernel refuses a connection to all hosts like one without a route: in the call itself, with the same error.
    let nowhere = "255.255.255.255:80".parse().unwrap();
    for probe in [steps(&[]), steps(&[(None, Some("x"))])] {
        let outcome = run(&check(probe), nowhere).await;
        let expected = Outcome::no_verdict("no route: network unreachable");
        assert_eq!(outcome, expected);
    }
}
