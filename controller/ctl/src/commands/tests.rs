// SPDX-License-Identifier: Apache-2.0

//! Commands for several controllers, one of which does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use clap::Parser as _;
use serde_json::json;
use tokio::net::TcpListener;

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
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let first = format!("http://{}", free.local_addr().unwrap());
    drop(free);
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
        error.starts_with("done at 1 of 2 controllers; http://127.0.0.1:"),
        "{error}"
    );
}

#[tokio::test]
async fn the_status_of_a_controller_that_does_not_answer_is_an_error() {
    let (address, _) = controller().await;
    let reply = run_for(&address, &["status"]).await.unwrap();
    assert_eq!(reply.code, 2, "{}", reply.text);
}
