// SPDX-License-Identifier: Apache-2.0

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

/// Both ends of a connection: the agent's, and that of the process inside.
fn ends() -> [Channel; 2] {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (agent, process) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    [agent, process].map(|end| Channel::new(end).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_not_taken_for_that_of_the_next_request() {
    let [agent, process] = ends();
    let inside = Inside::new(agent);
    let address = "10.96.0.1".parse().unwrap();
    let silent = inside.route(address).await.unwrap_err();
    assert!(matches!(silent, InsideError::Silent), "{silent}");
    let (late, _) = process
        .receive::<Numbered<Request>>()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(late.message, Request::Route(address));
    for (number, message) in [
        (late.number, Answer::Failed("late".into())),
        (late.number + 1, Answer::Done),
    ] {
        let answer = Numbered { number, message };
        process.send(&answer, None).await.unwrap();
    }
    inside.unroute(address).await.unwrap();
}

#[tokio::test]
async fn the_command_ends_if_its_agent_is_gone_before_an_answer() {
    let [agent, process] = ends();
    let start = Numbered {
        number: 1,
        message: Request::Start,
    };
    agent.send(&start, None).await.unwrap();
    drop(agent);
    let mut command = Command::new("sleep");
    command.arg("600").kill_on_drop(true);
    let (_, handle, _) = rtnetlink::new_connection().unwrap();
    let code = process::until_end(&process, &handle, command).await;
    assert_eq!(code.unwrap(), ExitCode::from(128 + 15));
}

#[tokio::test]
async fn a_request_to_end_is_obeyed_at_once_before_the_command_runs_and_passed_on_after() {
    let none = process::on_terminate(None);
    assert_eq!(none, Some(ExitCode::from(128 + 15)));
    let mut command = Command::new("sleep");
    let mut child = command.arg("600").kill_on_drop(true).spawn().unwrap();
    assert_eq!(process::on_terminate(Some(&child)), None);
    assert_eq!(child.wait().await.unwrap().signal(), Some(15));
}
