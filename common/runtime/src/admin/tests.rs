// SPDX-License-Identifier: Apache-2.0

use std::io::{self, Write};
use std::sync::Mutex;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::routing::post;
use tower::ServiceExt as _;

use super::*;
use crate::Peer;

const NETWORK: &str = "10.0.0.9:1234";
const TOKEN: &str = "a token of some length";

fn tcp(peer: &str) -> Peer {
    Peer::Tcp(peer.parse().unwrap())
}

async fn ask(admin: &Admin, peer: Peer, request: axum::http::request::Builder) -> (u16, String) {
    let mut request: Request = request.body(Body::empty()).unwrap();
    request.extensions_mut().insert(peer);
    let response = admin.clone().router().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

async fn get_from(admin: &Admin, peer: &str, path: &str) -> (u16, String) {
    ask(admin, tcp(peer), Request::get(path)).await
}

fn admin(token: Option<DebugToken>) -> Admin {
    Admin {
        debug: Router::new().route("/table", get(|| async { "secret" })),
        actions: Router::new().route("/confirm", post(|| async { "done" })),
        token,
        ..Admin::default()
    }
}

#[tokio::test]
async fn dumps_answer_on_loopback_only() {
    let admin = admin(None);
    let (status, body) = get_from(&admin, NETWORK, "/debug/table").await;
    assert_eq!((status, body.contains("secret")), (403, false));
    for peer in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        let (status, _) = get_from(&admin, peer, "/debug/table").await;
        assert_eq!(status, 200, "{peer}");
    }
    assert_eq!(get_from(&admin, NETWORK, "/livez").await.0, 200);
    let over_socket = ask(&admin, Peer::Unix(None), Request::get("/debug/table")).await;
    assert_eq!(over_socket, (200, "secret".to_owned()));
}

#[tokio::test]
async fn nothing_below_debug_answers_beside_the_socket() {
    for (path, expected) in [
        ("/livez", 200),
        ("/debug/table", 404),
        ("/debug/version", 404),
    ] {
        let mut request: Request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(tcp("127.0.0.1:1"));
        let router = admin(None).router_without_debug();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), expected, "{path}");
    }
}

#[tokio::test]
async fn browsers_that_are_not_admitted_get_a_hint_and_nothing_else() {
    let pages = Pages {
        routes: Router::new().route("/status/", get(|| async { "secret" })),
        hint: |reason| format!("<p>hint: {reason}"),
    };
    let admin = Admin {
        pages: Some(pages),
        ..admin(None)
    };
    let page = || Request::get("/status/");
    for (peer, host, expected) in [
        (NETWORK, "localhost:9444", 403),
        ("127.0.0.1:1", "evil.example", 403),
        ("127.0.0.1:1", "localhost:9444", 200),
    ] {
        let request = page().header("Host", host);
        let (status, body) = ask(&admin, tcp(peer), request).await;
        assert_eq!(status, expected, "{peer} {host}");
        assert_eq!(body.contains("secret"), expected == 200, "{body}");
        assert_eq!(body.starts_with("<p>hint: "), expected == 403, "{body}");
    }
    assert_eq!(ask(&admin, Peer::Unix(None), page()).await.0, 200);
}

#[tokio::test]
async fn dns_rebinding_is_refused() {
    let admin = admin(None);
    for (host, expected) in [
        ("evil.example", 403),
        ("evil.example:9444", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
        ("localhost:9444", 200),
        ("127.0.0.1:9444", 200),
        ("[::1]:9444", 200),
    ] {
        let request = Request::get("/debug/table").header("Host", host);
        let (status, body) = ask(&admin, tcp("127.0.0.1:1"), request).await;
        assert_eq!(status, expected, "{host:?}: {body}");
    }
    let two = Request::get("/debug/table").header("Host", "localhost");
    let two = two.header("Host", "evil.example");
    assert_eq!(ask(&admin, tcp("127.0.0.1:1"), two).await.0, 403);
}

#[tokio::test]
async fn actions_need_the_socket_or_the_token() {
    let loopback = "127.0.0.1:1";
    let action = || Request::post("/debug/confirm");
    let without = admin(None);
    assert_eq!(ask(&without, Peer::Unix(None), action()).await.0, 200);
    let (status, body) = ask(&without, tcp(loopback), action()).await;
    assert!(
        status == 403 && body.contains("--debug-token-file"),
        "{body}"
    );

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    let admin = admin(Some(DebugToken::new(path.clone())));
    let with = |token: &str| action().header("Authorization", format!("Bearer {token}"));
    assert_eq!(ask(&admin, tcp(loopback), with(TOKEN)).await.0, 500);
    std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
    assert_eq!(ask(&admin, tcp(loopback), with(TOKEN)).await.0, 200);
    assert_eq!(ask(&admin, tcp(NETWORK), with(TOKEN)).await.0, 403);
    for wrong in [action(), with(""), with("a token"), with(&TOKEN[1..])] {
        assert_eq!(ask(&admin, tcp(loopback), wrong).await.0, 401);
    }
    // A replaced file takes effect at once. An empty one admits no request.
    std::fs::write(&path, "another token that is long").unwrap();
    assert_eq!(ask(&admin, tcp(loopback), with(TOKEN)).await.0, 401);
    std::fs::write(&path, "\n").unwrap();
    assert_eq!(ask(&admin, tcp(loopback), with("")).await.0, 500);
}

/// The log, in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_action_that_is_admitted_is_in_the_audit_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false);
    let subscriber = subscriber.with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    let admin = admin(Some(DebugToken::new(path)));
    let action = || Request::post("/debug/confirm?all=1");
    let token = action().header("Authorization", format!("Bearer {TOKEN}"));
    // A test beside this one may have been the first with that event, before there was a log, which is remembered then.
    let first = ask(&admin, Peer::Unix(None), action()).await;
    assert_eq!(first.0, 200);
    tracing::callsite::rebuild_interest_cache();
    log.0.lock().unwrap().clear();
    assert_eq!(ask(&admin, tcp("127.0.0.1:7"), action()).await.0, 401);
    assert_eq!(ask(&admin, tcp("127.0.0.1:7"), token).await.0, 200);
    assert_eq!(ask(&admin, Peer::Unix(Some(1000)), action()).await.0, 200);
    assert_eq!(get_from(&admin, "127.0.0.1:7", "/debug/table").await.0, 200);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let expected = [
        "who=127.0.0.1:7 with the token action=/confirm?all=1 status=200",
        "who=user 1000 of the socket action=/confirm?all=1 status=200",
    ];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, expected) in lines.into_iter().zip(expected) {
        assert!(
            line.contains("INFO audit: audit: an operator acted ") && line.contains(expected),
            "{line}"
        );
    }
}

#[tokio::test]
async fn ready_when_nothing_blocks() {
    let admin = Admin::default();
    let block = admin.readiness.block("first table");
    let (status, body) = get_from(&admin, NETWORK, "/readyz").await;
    assert_eq!((status, &*body), (503, "waiting for: first table\n"));
    drop(block);
    assert_eq!(get_from(&admin, NETWORK, "/readyz").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_stuck_task_fails_the_liveness_probe() {
    let admin = Admin::default();
    let second = std::time::Duration::from_secs(1);
    let mut task = Box::pin(
        admin
            .liveness
            .watch("writer", second, std::future::pending::<()>()),
    );
    let ask = async || get_from(&admin, NETWORK, "/livez").await;
    // The task starts, and is then not polled.
    assert!(tokio::time::timeout(second / 2, &mut task).await.is_err());
    assert_eq!(ask().await, (200, "ok\n".to_owned()));
    tokio::time::advance(second * 2).await;
    assert_eq!(ask().await, (500, "stuck: writer\n".to_owned()));
    assert!(tokio::time::timeout(second / 2, &mut task).await.is_err());
    assert_eq!(ask().await.0, 200);
}
