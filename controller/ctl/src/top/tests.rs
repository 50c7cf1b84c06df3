// SPDX-License-Identifier: Apache-2.0

use axum::extract::RawQuery;
use axum::routing::get;
use axum::{Json, Router};
use portolan_terminal::Flow;
use portolan_terminal::ratatui::Terminal;
use portolan_terminal::ratatui::backend::TestBackend;
use portolan_terminal::ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

/// A program that answers a path; its address. An agent sorts by what it is asked for.
async fn program(path: &'static str, answer: Value) -> String {
    let reply = move |RawQuery(query): RawQuery| {
        let mut answer = answer.clone();
        let by_bytes = query.is_some_and(|query| query.contains("by=bytes"));
        if let (true, Some(services)) = (by_bytes, answer["services"].as_array_mut()) {
            services.reverse();
        }
        async { Json(answer) }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route(path, get(reply));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn agent() -> String {
    let service = |name: &str, connections: f64, bytes: f64| {
        json!({ "service": name, "active": 3, "inactive": 4,
            "rates": { "connections": connections, "bytes_in": bytes, "bytes_out": 0.25 } })
    };
    let services = [
        service("default/web/TCP", 1234.0, 17.2),
        service("default/dns/UDP", 2.5, 35e6),
    ];
    let answer = json!({ "revision": 7, "services": services, "omitted": 5 });
    program("/debug/services", answer).await
}

async fn controller() -> String {
    let node = |name: &str, connected: bool, lag: Option<u64>| {
        json!({ "node": name, "connected": connected, "sent": 9, "received": 9, "programmed": 9,
            "lag": lag, "behind_ms": lag.map(|lag| lag * 1000), "refused_total": 0,
            "errors_total": 0, "connected_at_ms": 1 })
    };
    let nodes = [
        node("a", true, None),
        node("b", true, Some(2)),
        node("c", false, None),
    ];
    program("/debug/nodes", json!({ "revision": 9, "nodes": nodes })).await
}

fn args(address: &str, by: By) -> TopArgs {
    TopArgs {
        once: true,
        interval: SECOND,
        by,
        limit: 50,
        address: address.to_owned(),
    }
}

fn connect(controller: &str) -> ConnectArgs {
    ConnectArgs {
        controller: vec![controller.to_owned()],
        timeout: Duration::from_secs(5),
        ..ConnectArgs::default()
    }
}

#[tokio::test]
async fn scripts_get_services_by_use_and_nodes_by_lag() {
    let (agent, controller) = (agent().await, controller().await);
    let reply = once(&connect(&controller), &args(&agent, By::Connections))
        .await
        .unwrap();
    let lines: Vec<Vec<_>> = reply
        .text
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(lines[1], ["default/web/TCP", "3", "4", "1.2k", "17", "0.2"]);
    assert_eq!(lines[2], ["default/dns/UDP", "3", "4", "2.5", "35M", "0.2"]);
    let first: Vec<_> = lines[5..8].iter().map(|line| line[..3].join(" ")).collect();
    assert_eq!(first, ["c no -", "b yes 2", "a yes -"]);
    assert!(
        reply.text.ends_with("note: 5 more Services: --limit\n"),
        "{}",
        reply.text
    );
    assert_eq!(reply.value["services"][0]["service"], "default/web/TCP");
    let reply = once(&connect(&controller), &args(&agent, By::Bytes))
        .await
        .unwrap();
    assert_eq!(reply.value["services"][0]["service"], "default/dns/UDP");
}

#[tokio::test]
async fn one_program_is_enough_and_none_is_an_error() {
    let nobody = "http://127.0.0.1:1";
    let (agent, controller) = (agent().await, controller().await);
    let reply = once(&connect(nobody), &args(&agent, By::Active))
        .await
        .unwrap();
    assert!(
        reply.text.contains("note: no nodes: nobody answers at"),
        "{}",
        reply.text
    );
    assert_eq!(reply.code, 2, "no controller answers");
    let mut unnamed = asked(&connect(nobody), &args(&agent, By::Active))
        .await
        .unwrap();
    unnamed.names_controllers = false;
    let top = unnamed.ask(By::Active).await.unwrap();
    assert_eq!(top.code, 0, "the agent alone is enough");
    let reply = once(&connect(&controller), &args(nobody, By::Active))
        .await
        .unwrap();
    assert!(
        reply.text.contains("note: no Services: nobody answers at"),
        "{}",
        reply.text
    );
    let error = once(&connect(nobody), &args(nobody, By::Active))
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("no Services: "), "{error}");
}

#[test]
fn the_view_waits_for_no_program_as_long_as_for_all() {
    let seconds = |timeout: u64| {
        let connect = ConnectArgs {
            timeout: Duration::from_secs(timeout),
            ..ConnectArgs::default()
        };
        impatient(&connect).timeout.as_secs()
    };
    assert_eq!((seconds(30), seconds(5)), (8, 5));
}

#[tokio::test]
async fn the_view_shows_both_lists_and_keys_change_it() {
    let asked = asked(
        &connect(&controller().await),
        &args(&agent().await, By::Active),
    )
    .await;
    let mut view = View::new(By::Active);
    view.take(asked.unwrap().ask(By::Active).await);
    let lines = |view: &View| {
        let mut terminal = Terminal::new(TestBackend::new(72, 12)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| {
            (0..72)
                .map(|x| buffer[(x, y)].symbol().to_owned())
                .collect::<String>()
        };
        (0..12)
            .map(|y| line(y).trim_end().to_owned())
            .collect::<Vec<_>>()
    };
    let shown = lines(&view);
    assert!(shown[0].starts_with("SERVICE") && shown[1].starts_with("default/web/TCP"));
    assert!(
        shown[5].starts_with("NODE") && shown[6].starts_with("c "),
        "{shown:?}"
    );
    assert_eq!(shown[10], "5 more Services: --limit");
    assert_eq!(
        shown[11],
        "q quit  s sort: active  Tab list: Services  / filter  ↑↓ scroll"
    );
    let mut press = |code| view.press(KeyEvent::new(code, KeyModifiers::NONE));
    for code in [KeyCode::Tab, KeyCode::End, KeyCode::Char('s')] {
        assert_eq!(press(code), Flow::Continue);
    }
    assert_eq!(view.order().get(), By::Connections);
    let shown = lines(&view);
    assert!(shown[6].starts_with("a "), "the last node: {shown:?}");
    view.take(Err(anyhow::anyhow!("gone")));
    assert!(
        lines(&view).contains(&"gone".to_owned()),
        "the error beside the last answer"
    );
    assert!(lines(&view)[1].starts_with("default/web/TCP"));
    let quit = view.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE));
    assert_eq!(quit, Flow::Quit);
}
