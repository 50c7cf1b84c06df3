// SPDX-License-Identifier: Apache-2.0

//! The agent's own DNS answers, with a controller's stream and without a controller.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use hickory_proto::rr::RecordType;
use portolan_agent::dns::{DnsArgs, Origin};
use portolan_agent::subscribe::{ClusterPin, Security};
use portolan_e2e::cluster::program;
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;
use portolan_runtime::Vital;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::ask::{Question, ask};
use crate::programs::{HOST, PATIENT, Running, coredns_or_skip, local, url};

/// The part of the agent that serves names; the rest needs a kernel with IPVS.
pub(crate) struct Agent {
    runtime: tokio::runtime::Runtime,
    token: CancellationToken,
}

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    dns: DnsArgs,
}

/// The socket of a test's agent.
pub(crate) fn socket(directory: &Path) -> String {
    format!("unix://{}/dns.sock", directory.display())
}

impl Agent {
    pub(crate) fn start(directory: &Path, controller: u16, flags: &[String]) -> Self {
        Self::of_cluster(directory, controller, "", flags)
    }

    /// An agent that says the name of its cluster.
    pub(crate) fn of_cluster(
        directory: &Path,
        controller: u16,
        cluster: &str,
        flags: &[String],
    ) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let bind = format!("--dns-bind-address={}", socket(directory));
        let fixed = ["agent".to_owned(), bind];
        let cli = Cli::try_parse_from([&fixed, flags].concat()).unwrap();
        let origin = Origin {
            pin: ClusterPin::default(),
            cluster: cluster.to_owned(),
            endpoints: vec![url(controller).parse().unwrap()].into(),
            security: Security::Plaintext,
            state_dir: directory.join("state"),
        };
        let token = CancellationToken::new();
        let (vital, _failures) = Vital::new(token.clone());
        let mut registry = Registry::default();
        let started = cli.dns.start(origin, &mut registry, &vital);
        runtime.block_on(started).unwrap();
        Self { runtime, token }
    }

    fn stop(self) {
        self.token.cancel();
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }
}

fn controller(directory: &Path, port: u16) -> Running {
    let mut command = Command::new(program("portolan-controller").unwrap());
    command
        .args([
            "--source=file",
            "--file-poll=50ms",
            "--plaintext",
            "--dns-zone=cluster.local",
        ])
        .arg("--file")
        .arg(directory.join("objects"))
        .arg(format!("--listen={}", local(port)))
        .args(["--admin-listen=127.0.0.1:0", "--debug-listen="]);
    Running::start(directory, "controller", &mut command).unwrap()
}

pub(crate) fn write(directory: &Path, address: &str) {
    let objects = directory.join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let text = format!(
        "kind: Service\napiVersion: v1\nmetadata: {{name: web, namespace: prod}}\n\
         spec: {{clusterIP: {address}, ports: [{{name: http, port: 80}}]}}\n"
    );
    let hidden = objects.join(".new");
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(hidden, objects.join("web.yaml")).unwrap();
}

#[test]
fn an_agent_keeps_answering_without_a_controller_and_after_a_restart() {
    let Some(coredns) = coredns_or_skip("dns agent") else {
        return;
    };
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path();
    let [dns, port] = ports::reserve().unwrap();
    let socket = socket(directory);
    let text = format!(".:{dns} {{\n bind {HOST}\n errors\n grpc . {socket}\n}}\n");
    std::fs::write(directory.join("Corefile"), text).unwrap();
    let web = Question {
        name: "web.prod.svc.cluster.local.".to_owned(),
        kind: RecordType::A,
    };
    let is = |address: &str| {
        let wanted = format!(" A {address}");
        let seen = ask(local(dns), &web, Duration::from_secs(2)).ok()?;
        let found = seen.answers.iter().any(|line| line.ends_with(&wanted));
        found.then_some(())
    };

    write(directory, "10.96.0.1");
    let agent = Agent::start(directory, port, &[]);
    let mut command = Command::new(coredns);
    command.arg("-conf").arg(directory.join("Corefile"));
    let _coredns = Running::start(directory, "coredns", &mut command).unwrap();
    // Before the first table the answer is a failure, not a missing name.
    let refused = wait_for("CoreDNS", PATIENT, || {
        ask(local(dns), &web, Duration::from_secs(2)).ok()
    });
    assert_eq!(
        refused.unwrap().code,
        hickory_proto::op::ResponseCode::ServFail
    );

    let mut first = controller(directory, port);
    wait_for("the agent to answer", PATIENT, || is("10.96.0.1")).unwrap();
    write(directory, "10.96.0.2");
    wait_for("a change", PATIENT, || is("10.96.0.2")).unwrap();
    let file = directory.join("state/names");
    let saved = || {
        let bytes = std::fs::read(&file).ok()?;
        bytes
            .windows(9)
            .any(|part| part == b"10.96.0.2")
            .then_some(())
    };
    wait_for("the change on disk", PATIENT, saved).unwrap();

    first.kill().unwrap();
    for _ in 0..20 {
        assert!(is("10.96.0.2").is_some(), "without a controller");
    }
    agent.stop();
    let agent = Agent::start(directory, port, &[]);
    wait_for("answers from disk", PATIENT, || is("10.96.0.2")).unwrap();

    write(directory, "10.96.0.3");
    let _second = controller(directory, port);
    wait_for("another controller's names", PATIENT, || is("10.96.0.3")).unwrap();
    agent.stop();
}
