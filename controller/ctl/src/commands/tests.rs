// SPDX-License-Identifier: Apache-2.0

//! Commands for several controllers, one of which does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Parser as _;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

use super::*;

/// A controller that counts what it is told to do.
async fn controller() -> (String, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let acted = |State(count): State<Arc<AtomicUsize>>| async move {
        count.fetch_add(1, Ordering::Relaxed);
        Json(json!({}))
    };
    let router = Router::new().fallback(post(acted).get(|| async { Json(json!({})) }));
    let router = router.with_state(Arc::clone(&count));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, count)
}

/// Runs a command for two controllers: the first does not answer.
async fn run_for(second: &str, arguments: &[&str]) -> anyhow::Result<Reply> {
    // A port that no other test takes.
    let first = "http://127.0.0.1:1";
    let controllers = format!("--controller={first},{second}");
    let program = ["portolanctl", &controllers];
    run(&Cli::parse_from(program.iter().chain(arguments))).await
}

#[tokio::test]
async fn a_controller_that_fails_does_not_keep_others_from_a_drain() {
    let (address, count) = controller().await;
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "token").unwrap();
    let token = format!("--token-file={}", token.path().display());
    let arguments = [&*token, "cluster", "undrain", "eu"];
    let error = run_for(&address, &arguments).await.unwrap_err().to_string();
    assert_eq!(count.load(Ordering::Relaxed), 1, "{error}");
    assert!(
        error.starts_with("done at 1 of 2 controllers; nobody answers at http://127.0.0.1:"),
        "{error}"
    );
}

/// Ends a drain at these controllers.
async fn undrain(controllers: &[&str]) -> anyhow::Result<Reply> {
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "token").unwrap();
    let token = format!("--token-file={}", token.path().display());
    let controllers = format!("--controller={}", controllers.join(","));
    let arguments = [&*controllers, &*token, "cluster", "undrain", "eu"];
    let program = ["portolanctl"].into_iter();
    run(&Cli::parse_from(program.chain(arguments))).await
}

#[tokio::test]
async fn a_controller_that_follows_is_no_failure_once_another_one_has_done_it() {
    let follows = || async {
        let error = json!({"error": "this one follows"});
        (StatusCode::MISDIRECTED_REQUEST, Json(error))
    };
    let router = Router::new().fallback(post(follows));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let follower = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let (leader, count) = controller().await;
    let reply = undrain(&[&follower, &leader]).await.unwrap();
    assert_eq!(reply.text, "cluster eu: no longer drained\n");
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let error = undrain(&[&follower]).await.unwrap_err().to_string();
    assert!(error.starts_with("done at 0 of 1 controllers; "), "{error}");
    assert!(error.ends_with("this one follows"), "{error}");
}

#[tokio::test]
async fn the_status_of_a_controller_that_does_not_answer_is_an_error() {
    let (address, _) = controller().await;
    let reply = run_for(&address, &["status"]).await.unwrap();
    assert_eq!(reply.code, 2, "{}", reply.text);
}

/// A controller with these answers to questions; it knows no other paths.
async fn answering(answers: &[(&'static str, serde_json::Value)]) -> String {
    let mut router = Router::new();
    for (path, answer) in answers {
        let answer = answer.clone();
        router = router.route(path, get(|| async { Json(answer) }));
    }
    let unknown = || async {
        (
            StatusCode::NOT_FOUND,
            Json(json!({"error": "not known here"})),
        )
    };
    let router = router.fallback(unknown);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn run_at(controllers: &[&str], arguments: &[&str]) -> anyhow::Result<Reply> {
    let controllers = format!("--controller={}", controllers.join(","));
    let program = ["portolanctl", &controllers];
    run(&Cli::parse_from(program.iter().chain(arguments))).await
}

fn node(is_connected: bool, at: u64) -> serde_json::Value {
    json!({"revision": 7, "nodes": [{
        "node": "a", "connected": is_connected, "connected_at_ms": at, "refused_total": 0, "errors_total": 0,
    }]})
}

#[tokio::test]
async fn a_controller_that_does_not_answer_hides_no_nodes_of_others() {
    let health = json!({"nodes": []});
    let problems = json!({"problems": []});
    let second = answering(&[
        ("/debug/nodes", node(true, 5)),
        ("/debug/health", health),
        ("/debug/problems", problems),
        ("/debug/version", json!({"version": "1.2.3"})),
    ])
    .await;
    for (command, code) in [("nodes", 2), ("health", 2), ("version", 2)] {
        let reply = run_for(&second, &[command]).await.unwrap();
        assert_eq!(reply.code, code, "{command}: {}", reply.text);
    }
    let reply = run_for(&second, &["nodes"]).await.unwrap();
    assert!(reply.text.contains("\na "), "{}", reply.text);
    assert_eq!(reply.notes.len(), 1, "{:?}", reply.notes);
    let top = ["top", "--once", "--address=http://127.0.0.1:1"];
    let reply = run_for(&second, &top).await.unwrap();
    assert_eq!(reply.code, 2, "{}", reply.text);
    // Of these each controller has the same.
    let reply = run_for(&second, &["problems"]).await.unwrap();
    assert_eq!((reply.code, reply.notes.len()), (0, 1), "{}", reply.text);
}

#[tokio::test]
async fn what_one_controller_knows_is_asked_of_that_one() {
    let held = json!({"held": [{"kind": "Service", "objects": 60, "ofObjects": 70}]});
    let behind = json!({"revision": 7, "programmed": 5, "records_equal": false, "own_equal": true});
    let equal = json!({"revision": 7, "programmed": 7, "records_equal": true, "own_equal": true});
    let cluster = |connected: u64| {
        json!({"clusters": [{"name": "eu", "served": true, "revision": 7,
            "connected": connected, "programmed": connected}]})
    };
    let first = answering(&[
        ("/debug/nodes", node(false, 5)),
        ("/debug/diff/a", behind),
        ("/debug/deletions", json!({"held": []})),
        ("/debug/clusters", cluster(1)),
    ])
    .await;
    let second = answering(&[
        ("/debug/nodes", node(true, 4)),
        ("/debug/diff/a", equal),
        ("/debug/deletions", held),
        ("/debug/clusters", cluster(2)),
    ])
    .await;
    let both = [&*first, &*second];
    let diff = run_at(&both, &["diff", "a"]).await.unwrap();
    assert_eq!(diff.code, 0, "{}", diff.text);
    let deletions = run_at(&both, &["deletions"]).await.unwrap();
    let expected = format!("{second}: Service: the deletion of 60 of 70 is held back\n");
    assert_eq!(deletions.text, expected);
    let clusters = run_at(&both, &["cluster", "list"]).await.unwrap();
    assert!(clusters.text.contains(" 3/3\n"), "{}", clusters.text);
    // A controller's own error is the answer.
    let error = run_at(&both, &["explain-export", "web"]).await.unwrap_err();
    assert_eq!(error.to_string(), "not known here");
}

/// A controller that answers this to everything.
async fn saying(status: StatusCode, answer: serde_json::Value) -> String {
    let router = Router::new().fallback(move || async move { (status, Json(answer)) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

#[tokio::test]
async fn a_controller_that_starts_or_stops_is_no_reason_not_to_ask_the_next_one() {
    let stops = json!({"error": "the controller is stopping"});
    let first = saying(StatusCode::SERVICE_UNAVAILABLE, stops).await;
    let second = answering(&[("/debug/problems", json!({"problems": []}))]).await;
    let reply = run_at(&[&first, &second], &["problems"]).await.unwrap();
    assert_eq!(reply.code, 0, "{}", reply.text);
    let note = format!("{first}: the controller is stopping");
    assert_eq!(reply.notes, [note]);
    // The last one's error is the answer.
    let error = run_at(&[&first], &["problems"]).await.unwrap_err();
    assert!(error.to_string().ends_with("is stopping"), "{error}");
}

#[tokio::test]
async fn a_controller_that_does_not_answer_delays_no_question_to_others() {
    let both = Arc::new(Barrier::new(2));
    let mut controllers = Vec::new();
    for _ in 0..2 {
        let both = Arc::clone(&both);
        let answer = move || async move {
            both.wait().await;
            Json(node(true, 5))
        };
        let router = Router::new().route("/debug/nodes", get(answer));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        controllers.push(format!("http://{}", listener.local_addr().unwrap()));
        tokio::spawn(async move { axum::serve(listener, router).await });
    }
    let controllers: Vec<_> = controllers.iter().map(String::as_str).collect();
    // Each answers once the other one is asked too.
    let reply = run_at(&controllers, &["--timeout=10s", "nodes"]).await;
    let reply = reply.unwrap();
    assert_eq!((reply.code, reply.notes.len()), (0, 0), "{:?}", reply.notes);
}

/// A token for actions over TCP, and the flag that names its file.
fn token() -> (tempfile::NamedTempFile, String) {
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "token").unwrap();
    let flag = format!("--token-file={}", token.path().display());
    (token, flag)
}

#[tokio::test]
async fn a_confirmation_tells_who_confirmed_and_who_failed() {
    let (_file, token) = token();
    let unknown = json!({"error": "node a: its agent has not connected"});
    let one = saying(StatusCode::NOT_FOUND, unknown).await;
    let busy = json!({"error": "busy"});
    let other = saying(StatusCode::SERVICE_UNAVAILABLE, busy).await;
    let of_node = [&*token, "confirm", "a"];
    let error = run_at(&[&one, &other], &of_node).await.unwrap_err();
    let error = error.to_string();
    for part in [
        format!("{one}: node a: its agent has not connected; "),
        format!("{other}: busy"),
    ] {
        assert!(error.contains(&part), "{part}: {error}");
    }
    let confirmed = saying(StatusCode::OK, json!({"revision": 7})).await;
    let reply = run_at(&[&one, &confirmed], &of_node).await.unwrap();
    assert_eq!((reply.code, reply.notes.len()), (0, 0), "{:?}", reply.notes);
    let held = json!({"held": [{"kind": "Service", "objects": 60, "ofObjects": 70}]});
    let holder = saying(StatusCode::OK, held).await;
    let deletions = [&*token, "confirm", "--deletions"];
    let reply = run_at(&[&holder, &other], &deletions).await.unwrap();
    let expected = format!("{holder}: Service: the deletion of 60 of 70 is confirmed\n");
    assert_eq!((reply.text, reply.code), (expected, 2));
    assert!(reply.notes[0].starts_with(&*other), "{:?}", reply.notes);
    let error = run_at(&[&other, &one], &deletions).await.unwrap_err();
    assert!(error.to_string().contains("not connected"), "{error}");
}

/// An agent over TCP refuses actions without its token.
#[tokio::test]
async fn a_confirmation_at_an_agent_shows_the_token() {
    let confirm = |headers: HeaderMap| async move {
        match headers.get(header::AUTHORIZATION) {
            Some(shown) if shown == "Bearer token" => {
                let held = json!({"revision": 7, "deleted": 60, "records": 70});
                (StatusCode::OK, Json(held))
            }
            _ => (StatusCode::UNAUTHORIZED, Json(json!({"error": "no token"}))),
        }
    };
    let router = Router::new().route("/debug/confirm", post(confirm));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("--address=http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let (_file, token) = token();
    let confirm = ["portolanctl", &token, "agent", &address, "confirm"];
    let reply = run(&Cli::parse_from(confirm)).await.unwrap();
    assert!(reply.text.starts_with("revision 7: "), "{}", reply.text);
    let without = ["portolanctl", "agent", &address, "confirm"];
    let error = run(&Cli::parse_from(without)).await.unwrap_err();
    assert_eq!(error.to_string(), "no token");
}

#[tokio::test]
async fn the_deletions_of_one_cluster_cannot_be_confirmed_alone() {
    let (address, count) = controller().await;
    let (_file, token) = token();
    let of_one = [&*token, "--cluster=eu-1", "confirm", "--deletions"];
    let error = run_at(&[&address], &of_one).await.unwrap_err().to_string();
    assert!(error.contains("leave out --cluster eu-1"), "{error}");
    assert_eq!(count.load(Ordering::Relaxed), 0);
    // An empty variable names no cluster, and a node has one.
    for good in [
        [&*token, "--cluster=", "confirm", "--deletions"],
        [&*token, "--cluster=eu-1", "confirm", "a"],
    ] {
        run_at(&[&address], &good).await.unwrap();
    }
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_namespace_of_pods_is_none_of_a_load_balancer() {
    for arguments in [
        ["delete", "lb", "web", "--namespace=prod"],
        ["get", "lb", "web", "--namespace=prod"],
        ["diff", "--file=a.yaml", "--namespace=prod", "--timeout=1s"],
    ] {
        let etcd = ["portolanctl", "--etcd-endpoint=http://127.0.0.1:1"];
        let cli = Cli::parse_from(etcd.iter().take(1).chain(&arguments).chain(&etcd[1..]));
        let error = run(&cli).await.unwrap_err().to_string();
        assert!(error.starts_with("--namespace: "), "{error}");
    }
}

/// The pod of a controller is replaced while a Service is waited for.
#[tokio::test]
async fn a_wait_asks_the_controllers_of_now() {
    let programmed = json!({"nodes": [{"node": "a", "connected": true, "programmed": true}]});
    let new = answering(&[("/debug/programmed", programmed)]).await;
    let at = |address: &str| of_agent(address, Duration::from_secs(1));
    let gone = vec![at("http://127.0.0.1:1").unwrap()];
    let again = async || Ok(vec![at(&new)?]);
    let target = wait::Target::new("default/web", None).unwrap();
    let limit = Duration::from_secs(30);
    let reply = wait::run(gone, again, &target, false, limit).await.unwrap();
    assert_eq!(reply.code, 0, "{}", reply.text);
}
