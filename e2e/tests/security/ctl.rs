// SPDX-License-Identifier: Apache-2.0

//! `portolanctl` and a controller's program.

use std::fs;
use std::process::Command;

use portolan_e2e::cluster::program;
use portolan_e2e::wait::wait_for;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;

use crate::client::{Client, PATIENCE, config, patiently};
use crate::server::Server;

/// Runs `portolanctl`. Returns its output, also after a difference or a timeout, or its error.
fn ctl(server: &Server, args: &[&str]) -> Result<String, String> {
    let done = Command::new(program("portolanctl").unwrap())
        .env(
            "PORTOLANCTL_CONTROLLER",
            format!("http://{}", server.admin()),
        )
        .args(args)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    match done.status.code() {
        Some(0 | 1) => Ok(text(done.stdout)),
        code => {
            assert_eq!(code, Some(2), "{args:?}");
            Err(text(done.stderr))
        }
    }
}

/// Confirms a node's table over the Unix socket.
fn confirm(server: &Server, node: &str) -> Result<String, String> {
    let at = format!("--controller={}", server.socket());
    ctl(server, &[&at, "confirm", node])
}

/// Repeats a command until its output is as wanted: the controller notes acknowledgements late.
fn until(server: &Server, args: &[&str], wanted: impl Fn(&str) -> bool) -> String {
    let look = || ctl(server, args).ok().filter(|text| wanted(text));
    wait_for(&args.join(" "), PATIENCE, look)
        .unwrap_or_else(|error| panic!("{error}: {:?}", ctl(server, args)))
}

// The client goes on while the program is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_observed_and_desired_state_of_nodes() {
    let server = Server::start();
    let mut client = Client::connect(server.agents, config(&server.certs().join("nodes/a")), "a")
        .await
        .unwrap();
    let committed = client.table().await.unwrap();
    client
        .say(Message::Programmed(v1::Programmed {
            revision: committed.revision,
            records_hash: committed.records_hash.to_bytes().into(),
            own_hash: committed.own_hash.to_bytes().into(),
            ..v1::Programmed::default()
        }))
        .await;

    let programmed = committed.revision.to_string();
    let is_programmed = |text: &str| {
        let words = text.lines().find(|line| line.starts_with("a "));
        let words = words.map(|line| line.split_whitespace().collect::<Vec<_>>());
        words.is_some_and(|words| words[4] == programmed)
    };
    until(&server, &["nodes"], is_programmed);
    let json = ctl(&server, &["nodes", "-o", "json"]).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json.to_string().contains("\"a\""), "{json}");

    let table = ctl(&server, &["table", "a"]).unwrap();
    for part in ["10.96.0.1:80", "10.244.0.100:"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let before = ctl(&server, &["diff", "a"]).unwrap();
    let explained = ctl(&server, &["explain", "10.96.0.1:80", "--node", "a"]).unwrap();
    assert!(explained.contains("10.244.0.7:"), "{explained}");
    let error = ctl(&server, &["explain", "10.96.9.9:80", "--node", "a"]).unwrap_err();
    assert!(error.contains("10.96.9.9"), "{error}");

    // Changes that the node lacks are named.
    server.publish(2);
    client.until(2).await;
    let after = until(&server, &["diff", "a"], |text| text.contains("s1"));
    assert_ne!(before, after);
    until(&server, &["nodes", "--behind"], |text| {
        text.lines().any(|line| line.starts_with("a "))
    });
}

// The client goes on while the program is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_confirms_a_table_that_is_held() {
    let server = Server::start();
    let mut client = Client::connect(server.agents, config(&server.certs().join("nodes/a")), "a")
        .await
        .unwrap();
    let revision = client.table().await.unwrap().revision;
    let error = confirm(&server, "a").unwrap_err();
    assert!(error.contains("node a"), "{error}");
    client
        .say(Message::Received(v1::Received {
            revision,
            held: Some(v1::Held {
                deleted: 150,
                records: 200,
                remaining_ms: 0,
            }),
            ..v1::Received::default()
        }))
        .await;
    let holding = || server.metric("portolan_controller_agents_holding");
    let held = || holding().filter(|agents| *agents == 1.0);
    wait_for("the agent to hold", PATIENCE, held).unwrap();
    // Every process of the machine reaches loopback.
    let error = ctl(&server, &["confirm", "a"]).unwrap_err();
    assert!(error.contains("need a token"), "{error}");
    let confirmed = confirm(&server, "a").unwrap();
    assert!(confirmed.contains("is confirmed"), "{confirmed}");
    assert_eq!(patiently(client.confirmed()).await, revision);
    let error = confirm(&server, "nobody").unwrap_err();
    assert!(error.contains("nobody"), "{error}");
}

#[test]
fn an_operator_sees_and_confirms_deletions_that_are_held() {
    let server = Server::guarded();
    let objects = |kind: &str| {
        let name = format!("portolan_controller_objects{{kind=\"{kind}\"}}");
        server.metric(&name)
    };
    let held = |kind: &str| {
        let name = format!("portolan_controller_source_deletions_held{{kind=\"{kind}\"}}");
        server.metric(&name)
    };
    // Each kind has a guard of its own.
    let are_held = |count: f64| {
        let kinds = ["Service", "EndpointSlice"];
        kinds
            .iter()
            .all(|kind| held(kind) == Some(count))
            .then_some(())
    };
    let until_all = || (objects("EndpointSlice") == Some(60.0)).then_some(());
    server.publish(60);
    wait_for("sixty slices", PATIENCE, until_all).unwrap();
    assert_eq!(
        ctl(&server, &["deletions"]).unwrap(),
        "no deletions are held back\n"
    );
    server.publish(2);
    wait_for("the guard", PATIENCE, || are_held(58.0)).unwrap();
    assert_eq!(
        (objects("Service"), objects("EndpointSlice")),
        (Some(60.0), Some(60.0))
    );
    let said = ctl(&server, &["deletions"]).unwrap();
    let slices =
        "EndpointSlice: the deletion of 58 of 60 is held back, with 5800 of 6000 ready endpoints";
    assert!(said.contains(slices), "{said}");
    // As for every action, there must be a credential.
    let error = ctl(&server, &["confirm", "--deletions"]).unwrap_err();
    assert!(error.contains("need a token"), "{error}");
    let at = format!("--controller={}", server.socket());
    let confirmed = ctl(&server, &[&at, "confirm", "--deletions"]).unwrap();
    assert!(
        confirmed.contains("Service: the deletion of 58 of 60 is confirmed"),
        "{confirmed}"
    );
    let are_two = || objects("Service") == Some(2.0) && objects("EndpointSlice") == Some(2.0);
    let look = || are_held(0.0).filter(|()| are_two());
    wait_for("the deletions", PATIENCE, look).unwrap();
}

#[test]
fn a_token_confirms_over_tcp() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    fs::write(&path, "a token of some length\n").unwrap();
    let flag = |name: &str| format!("--{name}={}", path.display());
    let server = Server::with(&[&flag("debug-token-file")]);
    let error = ctl(&server, &["confirm", "a"]).unwrap_err();
    assert!(error.contains("Authorization"), "{error}");
    let token = flag("token-file");
    let error = ctl(&server, &[&token, "confirm", "a"]).unwrap_err();
    assert!(error.contains("node a: "), "{error}");
    fs::write(directory.path().join("other"), "another, which is wrong").unwrap();
    let other = format!("--token-file={}", directory.path().join("other").display());
    let error = ctl(&server, &[&other, "confirm", "a"]).unwrap_err();
    assert!(error.contains("Authorization"), "{error}");
}

/// The exit code of a command, with its output.
fn exit(server: &Server, args: &[&str]) -> (Option<i32>, String) {
    let done = Command::new(program("portolanctl").unwrap())
        .arg(format!("--controller=http://{}", server.admin()))
        .args(args)
        .output()
        .unwrap();
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

// The client goes on while the program is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_wait_until_a_service_is_programmed() {
    let server = Server::start();
    // Longer than an answer takes on a busy machine: without any the command fails.
    let short = "--timeout=2s";
    // No agent has connected, so no state is known.
    assert_eq!(exit(&server, &["wait", "default/s0", short]).0, Some(1));
    let mut client = Client::connect(server.agents, config(&server.certs().join("nodes/a")), "a")
        .await
        .unwrap();
    let committed = client.table().await.unwrap();
    let revision = committed.revision.to_string();
    let (code, text) = exit(&server, &["wait", &revision, short]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("not programmed on 1 of 1 node after"),
        "{text}"
    );
    assert_eq!(exit(&server, &["diff", "a"]).0, Some(1));

    client
        .say(Message::Programmed(v1::Programmed {
            revision: committed.revision,
            records_hash: committed.records_hash.to_bytes().into(),
            own_hash: committed.own_hash.to_bytes().into(),
            ..v1::Programmed::default()
        }))
        .await;
    let (code, text) = exit(&server, &["wait", &revision]);
    assert_eq!(
        (code, text),
        (Some(0), format!("{revision}: programmed on 1 node\n"))
    );
    assert_eq!(exit(&server, &["diff", "a"]).0, Some(0));
    assert_eq!(exit(&server, &["diff", "nobody"]).0, Some(2));

    // Only changes of the Service itself are waited for.
    server.publish(2);
    client.until(2).await;
    assert_eq!(exit(&server, &["wait", "default/s1", short]).0, Some(1));
    assert_eq!(exit(&server, &["wait", "default/s0", short]).0, Some(0));
    assert_eq!(exit(&server, &["wait", "s1"]).0, Some(2));
}

#[test]
fn dumps_have_formats_for_people_and_programs() {
    let server = Server::start();
    let status = ctl(&server, &["status"]).unwrap();
    let row = status.lines().nth(1).unwrap();
    assert!(
        row.contains("yes") && row.contains(env!("CARGO_PKG_VERSION")),
        "{status}"
    );
    let yaml = ctl(&server, &["status", "-o", "yaml"]).unwrap();
    assert!(yaml.contains("ready: true"), "{yaml}");
    let version = ctl(&server, &["version"]).unwrap();
    assert_eq!(version.lines().count(), 2, "{version}");
    assert_eq!(ctl(&server, &["problems"]).unwrap(), "no problems\n");
    let wide = ctl(&server, &["nodes", "-o", "wide"]).unwrap();
    assert!(wide.contains("VERSION"), "{wide}");
    let script = ctl(&server, &["completions", "bash"]).unwrap();
    assert!(script.contains("portolanctl"), "{script}");
    let error = ctl(&server, &["confirm", "a", "--watch"]).unwrap_err();
    assert!(error.contains("--watch"), "{error}");
}
