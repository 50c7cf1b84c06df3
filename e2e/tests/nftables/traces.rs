// SPDX-License-Identifier: Apache-2.0

//! `portolanctl trace` on a node: the way of a packet, and what its kernel lacks of it.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::programs::{AGENT_ADMIN, program};
use portolan_e2e::rig::{self, Host};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use crate::{WEB, skip, web};

/// Runs `portolanctl trace` on a node: its exit code and output.
fn trace(cluster: &Cluster, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program("portolanctl").unwrap());
    command
        .arg("trace")
        .args(args)
        .arg(format!("--address=http://127.0.0.1:{AGENT_ADMIN}"));
    let node = cluster.rig.node(0).namespace();
    let output = node.run(move || command.output().unwrap()).unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Damage to a node's table that is done again after each repair. An agent pauses between repairs, so that most
/// traces find it.
struct Damage<'a> {
    cluster: &'a Cluster,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<'a> Damage<'a> {
    fn start(cluster: &'a Cluster, command: &'static str) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let node: &Host = cluster.rig.node(0);
        let (node, ends) = (node.clone(), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // Before the repair there is nothing to delete.
                let _ = node.exec(&["nft", command]);
            }
        });
        Self {
            cluster,
            is_over,
            thread: Some(thread),
        }
    }

    /// Returns the output of a trace that finds differences.
    fn trace(&self, args: &[&str]) -> String {
        wait_for("a trace that finds the damage", PATIENT, || {
            let (code, text) = trace(self.cluster, args);
            (code == Some(1)).then_some(text)
        })
        .unwrap()
    }
}

impl Drop for Damage<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(())) | None));
    }
}

#[test]
fn a_trace_shows_the_way_of_a_packet_and_what_the_kernel_lacks_of_it() {
    if skip("a_trace_shows_the_way_of_a_packet_and_what_the_kernel_lacks_of_it") {
        return;
    }
    let (cluster, pods) = web(&json!({}));
    // A probe needs a route: a node has a default route.
    let gateway = cluster.rig.client().address(rig::Family::V4);
    cluster.rig.node(0).add_route("default", gateway).unwrap();
    for (from, to) in [
        ("pod", WEB[0]),
        ("node", WEB[0]),
        ("outside", WEB[0]),
        ("pod", WEB[1]),
    ] {
        let to = match to.contains(':') {
            true => format!("[{to}]:80"),
            false => format!("{to}:80"),
        };
        let (code, text) = trace(&cluster, &[from, &to]);
        assert_eq!(code, Some(0), "{text}");
        assert!(
            text.contains("the kernel has what the table asks for"),
            "{text}"
        );
        for pod in &pods {
            let family = match to.starts_with('[') {
                true => rig::Family::V6,
                false => rig::Family::V4,
            };
            let address = pod.pod.address(family).to_string();
            assert!(text.contains(&address), "{address} is missing in {text}");
        }
        let is_masqueraded = text.contains("masqueraded");
        assert_eq!(is_masqueraded, from != "pod", "{text}");
    }
    let (code, text) = trace(&cluster, &["node", "10.96.0.10:80", "--probe"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("note: probe: answered"), "{text}");
    let (code, text) = trace(&cluster, &["node", "10.96.0.10:81", "--probe"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("refused by set cluster-ips"), "{text}");
    assert!(text.contains("note: probe: refused"), "{text}");

    let damage = Damage::start(
        &cluster,
        "delete element ip portolan services { 10.96.0.10 . tcp . 80 }",
    );
    let text = damage.trace(&["pod", "10.96.0.10:80", "-o", "json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    let differences = found["differences"].as_array().unwrap();
    let places: Vec<_> = differences
        .iter()
        .map(|d| d["place"].as_str().unwrap())
        .collect();
    assert_eq!(
        places,
        ["map services TCP 10.96.0.10:80", "the end"],
        "{text}"
    );
    assert_eq!(differences[0]["found"], "absent");
    assert_eq!(differences[1]["found"], "refused", "{text}");
    let (code, text) = trace(&cluster, &["pod", "[fd00:10:96::10]:80"]);
    assert_eq!(code, Some(0), "IPv6 is as it was: {text}");

    drop(damage);
    let damage = Damage::start(&cluster, "flush chain ip6 portolan nat-in");
    let text = damage.trace(&["pod", "[fd00:10:96::10]:80"]);
    assert!(text.contains("chain nat-in"), "{text}");
    drop(damage);
    let (code, text) = trace(&cluster, &["pod", "10.96.0.10"]);
    assert_eq!(code, Some(2), "{text}");
}
