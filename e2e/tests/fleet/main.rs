// SPDX-License-Identifier: Apache-2.0

//! A fleet whose objects are in a real etcd with certificates and passwords: `portolanctl apply` writes them,
//! and the tables of the controller that follows them have them. Or they are in the controller's files.

#![allow(clippy::unwrap_used, reason = "a test")]

mod director;
mod etcd;
mod files;
mod health;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use etcd::{Etcd, HOST, PATIENT, Running};
use portolan_e2e::cluster::program;
use portolan_e2e::lane;
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;
use serde_json::Value;

/// An etcd, a controller, and the Node of a director.
struct Fleet<'a> {
    directory: &'a Path,
    etcd: Etcd<'a>,
    /// Port of the controller's streams.
    streams: u16,
    /// Endpoints of etcd, of which the first is of a dead member.
    endpoints: String,
    controller: Option<Running>,
}

impl<'a> Fleet<'a> {
    fn start(directory: &'a Path) -> Self {
        let etcd = Etcd::start(directory).unwrap();
        fs::write(directory.join("password"), "secret\n").unwrap();
        let [dead, streams] = ports::reserve().unwrap();
        let endpoints = [dead, etcd.secure].map(|port| format!("https://{HOST}:{port}"));
        let mut fleet = Self {
            directory,
            etcd,
            streams,
            endpoints: endpoints.join(","),
            controller: None,
        };
        fleet.controller = Some(fleet.controller((HOST, streams).into(), "controller"));
        fleet.applied(
            "apiVersion: v1\nkind: Node\nmetadata: {name: lb-1}\n",
            "Node lb-1: created\n",
        );
        fleet
    }

    fn controller(&self, streams: SocketAddr, name: &str) -> Running {
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args(["--source=etcd", "--plaintext", "--admin-listen=127.0.0.1:0"])
            .arg(format!("--listen={streams}"))
            .arg(format!("--debug-listen=unix://{}", self.socket(name)));
        self.access(&mut command, name);
        Running::start(self.directory, name, &mut command).unwrap()
    }

    fn access(&self, command: &mut Command, password: &str) {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let password = match password {
            "wrong" => "ca.crt",
            _ => "password",
        };
        command
            .args(["--etcd-endpoint", &self.endpoints, "--etcd-user", "fleet"])
            .args(["--etcd-ca", &file("ca.crt")])
            .args(["--etcd-cert", &file("client.crt")])
            .args(["--etcd-key", &file("client.key")])
            .args(["--etcd-password-file", &file(password)]);
    }

    fn socket(&self, name: &str) -> String {
        let path = self.directory.join(format!("{name}.sock"));
        path.display().to_string()
    }

    /// Runs portolanctl with the flags of etcd.
    fn with_etcd(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("portolanctl").unwrap());
        command.args(args);
        self.access(&mut command, "right");
        command.output().unwrap()
    }

    /// Runs portolanctl, which asks the controller.
    fn asked(&self, args: &[&str]) -> Output {
        let mut command = Command::new(program("portolanctl").unwrap());
        let socket = format!("--controller=unix://{}", self.socket("controller"));
        command.arg(socket).args(args).output().unwrap()
    }

    /// Runs portolanctl, which asks the controller; its output.
    fn ask(&self, args: &[&str]) -> String {
        text(&self.asked(args))
    }

    /// Writes a file, and applies it; the exit code and the output.
    fn apply(&self, objects: &str, more: &[&str]) -> (Option<i32>, String) {
        let file = self.directory.join("objects.yaml");
        fs::write(&file, objects).unwrap();
        let args = [&["apply", "-f", file.to_str().unwrap()], more].concat();
        let output = self.with_etcd(&args);
        (output.status.code(), text(&output))
    }

    fn applied(&self, objects: &str, expected: &str) {
        assert_eq!(self.apply(objects, &[]), (Some(0), expected.to_owned()));
    }

    /// The records of the director's table with the weight of their first backend: `web=1`.
    fn table(&self) -> Option<String> {
        let table: Value =
            serde_json::from_str(&self.ask(&["table", "lb-1", "-o", "json"])).ok()?;
        let records = table["records"].as_array()?.iter();
        let shown = records.map(|record| {
            let name = record["key"]["service"].as_str().unwrap_or_default();
            format!("{name}={}", record["destinations"][0]["weight"])
        });
        Some(shown.collect::<Vec<_>>().join(" "))
    }

    fn await_table(&self, expected: &str) {
        let mut last = None;
        let arrived = wait_for("the table", PATIENT, || {
            last = self.table();
            (last.as_deref() == Some(expected)).then_some(())
        });
        arrived.unwrap_or_else(|error| panic!("{error}: {expected:?}, not {last:?}"));
    }

    fn await_said(&self, what: &str, args: &[&str]) {
        let mut last = String::new();
        let said = wait_for(what, PATIENT, || {
            last = self.ask(args);
            last.contains(what).then_some(())
        });
        said.unwrap_or_else(|error| panic!("{error}: {last}"));
    }

    fn await_log(&self, name: &str, text: &str) {
        let file = self.directory.join(format!("{name}.log"));
        let said = || fs::read_to_string(&file).ok()?.contains(text).then_some(());
        wait_for(text, PATIENT, said).unwrap();
    }
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8(all).unwrap()
}

fn balancer(name: &str, address: &str, weight: u16) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\n\
         metadata: {{name: {name}, labels: {{team: a}}}}\nspec:\n  \
         frontends: [{{addresses: [{address}], port: 80}}]\n  \
         backends: [{{address: 10.0.0.1, weight: {weight}}}]\n"
    )
}

fn web(weight: u16) -> String {
    balancer("web", "192.0.2.1", weight)
}

fn fleet_or_skip(directory: &Path) -> Option<Fleet<'_>> {
    if Command::new("etcd").arg("--version").output().is_err() {
        lane::missing("fleet", "needs the program etcd");
        return None;
    }
    Some(Fleet::start(directory))
}

#[test]
fn tables_follow_etcd_and_stay_without_it() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(mut fleet) = fleet_or_skip(temporary.path()) else {
        return;
    };
    let dns = balancer("dns", "192.0.2.2", 1);
    let both = format!("{}---\n{dns}", web(1));
    fleet.applied(
        &both,
        "LoadBalancer default/dns: created\nLoadBalancer default/web: created\n",
    );
    fleet.await_table("dns=1 web=1");

    // A bad value is named, the last good one stays, and others go on.
    fleet
        .etcd
        .put("loadbalancers/default/web", "{\"kind\": 1}")
        .unwrap();
    fleet.await_said("LoadBalancer default/web: ", &["problems"]);
    fleet.applied(
        &balancer("dns", "192.0.2.2", 2),
        "LoadBalancer default/dns: changed\n",
    );
    fleet.await_table("dns=2 web=1");
    fleet.applied(&web(2), "LoadBalancer default/web: changed\n");
    fleet.await_table("dns=2 web=2");
    wait_for("no problem", PATIENT, || {
        let said = fleet.ask(&["problems"]);
        (!said.contains("default/web")).then_some(())
    })
    .unwrap();

    // Without etcd everything stays, and its restart goes unnoticed.
    fleet.etcd.stop();
    fleet.await_log("controller", "etcd cannot be followed; everything stays");
    assert_eq!(fleet.table().as_deref(), Some("dns=2 web=2"));
    fleet.etcd.restart().unwrap();
    fleet.applied(&web(3), "LoadBalancer default/web: changed\n");
    fleet.await_table("dns=2 web=3");

    // The controller loses its watch, and is away while its revision is compacted.
    let controller = fleet.controller.as_ref().unwrap();
    controller.signal("STOP").unwrap();
    fleet.etcd.restart().unwrap();
    fleet.applied(&web(4), "LoadBalancer default/web: changed\n");
    assert_eq!(
        fleet.with_etcd(&["delete", "lb", "dns"]).status.code(),
        Some(0)
    );
    fleet.etcd.compact().unwrap();
    let controller = fleet.controller.as_ref().unwrap();
    controller.signal("CONT").unwrap();
    fleet.await_table("web=4");
    fleet.await_log("controller", "reading all keys again");
}

#[test]
fn an_emptied_store_is_held_until_it_is_confirmed() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(fleet) = fleet_or_skip(temporary.path()) else {
        return;
    };
    let both = format!("{}---\n{}", web(1), balancer("dns", "192.0.2.2", 1));
    assert_eq!(fleet.apply(&both, &[]).0, Some(0));
    fleet.await_table("dns=1 web=1");
    fleet.etcd.delete_load_balancers().unwrap();
    fleet.await_said("LoadBalancer", &["deletions"]);
    assert_eq!(fleet.table().as_deref(), Some("dns=1 web=1"));
    let confirmed = fleet.ask(&["confirm", "--deletions"]);
    assert!(confirmed.contains("confirmed"), "{confirmed}");
    fleet.await_table("");
}

#[test]
fn writes_are_checked_and_based_on_what_was_read() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(fleet) = fleet_or_skip(temporary.path()) else {
        return;
    };
    // Nothing is written if anything is wrong.
    let bad = format!("{}---\n{}", web(1), balancer("dns", "192.0.2.999", 1));
    let (code, said) = fleet.apply(&bad, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("objects.yaml:12:") && said.contains("192.0.2.999"),
        "{said}"
    );
    assert!(!text(&fleet.with_etcd(&["get"])).contains("web"));
    let (code, said) = fleet.apply(&web(1), &["--dry-run"]);
    assert_eq!(
        (code, &*said),
        (Some(0), "LoadBalancer default/web: created (dry run)\n")
    );
    assert!(!text(&fleet.with_etcd(&["get"])).contains("web"));

    // Two people edit the same version: the second one is told.
    fleet.applied(&web(1), "LoadBalancer default/web: created\n");
    let read = text(&fleet.with_etcd(&["get", "lb", "web", "-o", "yaml"]));
    assert!(read.contains("resourceVersion: "), "{read}");
    fleet.applied(&web(5), "LoadBalancer default/web: changed\n");
    let (code, said) = fleet.apply(&read.replace("10.0.0.1", "10.0.0.7"), &[]);
    assert_eq!(code, Some(4), "{said}");
    for part in [
        "default/web: conflict: based on version",
        "+  - address: \"10.0.0.7\"",
        "nothing was written",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let file = temporary.path().join("web.yaml");
    let file = file.to_str().unwrap();
    fs::write(file, web(5)).unwrap();
    let same = fleet.with_etcd(&["diff", "-f", file]);
    assert_eq!(
        (same.status.code(), text(&same)),
        (Some(0), "equal\n".to_owned())
    );
    fs::write(file, web(6)).unwrap();
    assert_eq!(
        fleet.with_etcd(&["diff", "-f", file]).status.code(),
        Some(1)
    );

    // Only objects with the label are pruned; 128 objects fit into one transaction.
    let many: Vec<_> = (0..200)
        .map(|i| balancer(&format!("a{i}"), &format!("192.0.3.{i}"), 1))
        .collect();
    assert_eq!(fleet.apply(&many.join("---\n"), &[]).0, Some(0));
    let (code, said) = fleet.apply(&web(6), &["--prune", "-l", "team=b"]);
    assert_eq!(
        (code, &*said),
        (Some(0), "LoadBalancer default/web: changed\n")
    );
    let (code, said) = fleet.apply(&web(6), &["--prune", "-l", "team=a"]);
    assert_eq!((code, said.lines().count()), (Some(0), 201), "{said}");
    // Nearly all at once: held until an operator confirms it.
    fleet.await_said("LoadBalancer", &["deletions"]);
    fleet.ask(&["confirm", "--deletions"]);
    fleet.await_table("web=6");
    let gone = fleet.with_etcd(&["delete", "lb", "a1"]);
    assert_eq!(gone.status.code(), Some(2));
    assert!(text(&gone).contains("LoadBalancer default/a1: not found"));

    // A controller with a wrong password says so.
    let [streams] = ports::reserve().unwrap();
    let _wrong = fleet.controller((HOST, streams).into(), "wrong");
    fleet.await_log("wrong", "authentication failed");
}
