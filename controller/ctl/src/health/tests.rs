// SPDX-License-Identifier: Apache-2.0

use serde_json::{Value, json};

use super::*;

fn backend(address: &str, state: &str) -> Value {
    json!({
        "address": address, "state": state, "administrative": "enabled", "weight": 1,
        "since": 1_700_000_000,
        "reason": if state == "down" { "status 503" } else { "" },
    })
}

/// A node whose load balancer `default/web` has two backends, of which the second is in this state.
fn node(name: &str, connected: bool, state: &str) -> Value {
    let quorum = (state != "probing").then_some(true);
    json!({
        "cluster": "", "node": name, "connected": connected, "connected_at_ms": 5,
        "balancers": [{
            "name": "default/web", "frontend": "http", "protocol": "TCP", "quorum": quorum,
            "sorry": false, "up": 1, "total": 2,
            "backends": [backend("10.0.0.1:80", "up"), backend("10.0.0.2:80", state)],
        }],
    })
}

fn asked(nodes: &[Value]) -> Reply {
    show(
        vec![json!({ "nodes": nodes })],
        &HealthArgs::default(),
        false,
    )
    .unwrap()
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn where_directors_disagree_is_shown() {
    let reply = asked(&[
        node("lb-1", true, "up"),
        node("lb-2", true, "down"),
        node("lb-3", true, "ramping"),
    ]);
    let lines: Vec<_> = reply.text.lines().collect();
    let name = "default/web:http/TCP";
    assert_eq!(
        words(lines[1]),
        [name, "(quorum)", "3/3", "agree", "-", "-"]
    );
    assert_eq!(
        words(lines[2]),
        [name, "10.0.0.1:80", "3/3", "agree", "-", "-"]
    );
    assert_eq!(
        words(lines[3]),
        [
            name,
            "10.0.0.2:80",
            "2/3",
            "disagree",
            "lb-2",
            "status",
            "503"
        ]
    );
    assert_eq!(reply.code, UNHEALTHY);
    let balancer = &reply.value[0];
    assert_eq!(balancer["disagree"], true);
    assert_eq!(balancer["backends"][0]["disagree"], false);
    let on_lb2 = &balancer["backends"][1]["nodes"][1];
    assert_eq!(on_lb2["state"], "down");
    assert_eq!(on_lb2["since"], "2023-11-14T22:13:20Z");
}

#[test]
fn a_fleet_is_healthy_when_nobody_says_down() {
    let reply = asked(&[node("lb-1", true, "up"), node("lb-2", true, "probing")]);
    assert_eq!(reply.code, 0);
    let lines: Vec<_> = reply.text.lines().collect();
    assert!(lines[3].contains("1/1  agree"), "{}", reply.text);
    // The last report of a director that is gone says nothing about now.
    let reply = asked(&[node("lb-1", true, "up"), node("lb-2", false, "down")]);
    assert_eq!(
        (reply.code, &reply.value[0]["disagree"]),
        (0, &json!(false))
    );
    // All say down: they agree.
    let reply = asked(&[node("lb-1", true, "down"), node("lb-2", true, "down")]);
    assert_eq!(
        (reply.code, &reply.value[0]["disagree"]),
        (3, &json!(false))
    );
    assert!(
        reply.text.contains("0/2  agree      lb-1,lb-2"),
        "{}",
        reply.text
    );
}

#[test]
fn a_load_balancer_without_quorum_is_unhealthy_though_no_backend_is_listed() {
    let mut lacking = node("lb-1", true, "up");
    lacking["balancers"][0]["quorum"] = false.into();
    lacking["balancers"][0]["backends"] = json!([]);
    let reply = asked(&[lacking, node("lb-2", true, "up")]);
    assert_eq!((reply.code, &reply.value[0]["disagree"]), (3, &json!(true)));
    assert!(
        reply.text.contains("(quorum)     1/2  disagree   lb-1"),
        "{}",
        reply.text
    );
}

#[test]
fn lines_can_be_chosen() {
    let nodes = vec![node("lb-1", true, "up"), node("lb-2", true, "down")];
    let ask = |args: HealthArgs, wide| show(vec![json!({ "nodes": nodes })], &args, wide);
    let named = |name: &str| HealthArgs {
        name: Some(name.to_owned()),
        ..HealthArgs::default()
    };
    assert_eq!(ask(named("web"), false).unwrap().text.lines().count(), 4);
    let unknown = ask(named("dns"), false).unwrap_err().to_string();
    assert_eq!(unknown, "no director has a load balancer default/dns");
    let one = HealthArgs {
        node: vec!["lb-1".to_owned()],
        ..HealthArgs::default()
    };
    assert_eq!(ask(one, false).unwrap().code, 0);
    let down = HealthArgs {
        down: true,
        ..HealthArgs::default()
    };
    let reply = ask(down.clone(), true).unwrap();
    assert!(!reply.text.contains("10.0.0.1:80"), "{}", reply.text);
    assert!(
        reply.text.contains("lb-2  yes        down    enabled"),
        "{}",
        reply.text
    );
    // What is left out counts all the same.
    assert_eq!(reply.code, UNHEALTHY);
    for wide in [false, true] {
        let up = [node("lb-1", true, "up"), node("lb-2", true, "up")];
        let reply = show(vec![json!({ "nodes": up })], &down, wide).unwrap();
        assert_eq!((&*reply.text, reply.code), ("no backend is down\n", 0));
    }
}

#[test]
fn a_director_that_has_not_reported_is_an_error() {
    let asked = |names: [&str; 2]| {
        let args = HealthArgs {
            node: names.map(str::to_owned).into(),
            ..HealthArgs::default()
        };
        let nodes = [node("lb-1", true, "up"), node("lb-2", false, "up")];
        show(vec![json!({ "nodes": nodes })], &args, false)
    };
    assert_eq!(asked(["lb-1", "lb-2"]).unwrap().code, 0);
    let error = asked(["lb-1", "lb-3"]).unwrap_err().to_string();
    assert_eq!(error, "no director lb-3 has reported its health");
}

#[test]
fn a_node_is_shown_as_its_controller_says() {
    let answers = |states: [(bool, &str); 2]| {
        let answer = |(connected, state)| json!({ "nodes": [node("lb-1", connected, state)] });
        show(states.map(answer).into(), &HealthArgs::default(), false).unwrap()
    };
    assert_eq!(answers([(true, "up"), (false, "down")]).code, 0);
    assert_eq!(answers([(false, "up"), (true, "down")]).code, 3);
    let none = asked(&[]);
    assert_eq!((none.code, &none.value), (0, &json!([])));
    assert!(none.text.starts_with("no director"));
    let bad = show(vec![json!({})], &HealthArgs::default(), false);
    assert!(bad.is_err());
}
