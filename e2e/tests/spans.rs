// SPDX-License-Identifier: Apache-2.0

//! Spans of a change, from a file at the controller to the sockets of an agent, also by way of a relay, as a
//! collector of OpenTelemetry receives them over gRPC; and that none are sent without a flag.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use portolan_e2e::objects::{service, slice_of};
use portolan_e2e::ports;
use portolan_e2e::programs::program;
use portolan_e2e::rig::Family;
use portolan_e2e::wait::wait_for;
use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A deadline that only a failure reaches.
const PATIENT: Duration = Duration::from_secs(60);
const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A program that is killed on drop.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Ends it as systemd does, and waits.
    fn end(mut self) {
        let id = self.0.id().to_string();
        let killed = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(killed.unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A collector of spans.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    fn start(runtime: &Runtime) -> (Self, String) {
        let collector = Self::default();
        let listener = runtime.block_on(TcpListener::bind((HOST, 0))).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::builder().add_service(TraceServiceServer::new(collector.clone()));
        runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, endpoint)
    }

    /// The spans of each trace by program and name.
    fn traces(&self) -> BTreeMap<Vec<u8>, BTreeMap<String, Span>> {
        let mut traces: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        let requests = self.0.lock().unwrap();
        for of_program in requests.iter().flat_map(|request| &request.resource_spans) {
            let resource = of_program.resource.as_ref().unwrap();
            let mut attributes = resource.attributes.iter();
            let name = attributes.find(|one| one.key == "service.name").unwrap();
            let name = format!("{:?}", name.value);
            let program = match name.contains("portolan-agent") {
                true => "agent",
                false => "controller",
            };
            for span in of_program.scope_spans.iter().flat_map(|of| &of.spans) {
                let of_trace = traces.entry(span.trace_id.clone()).or_default();
                let name = format!("{program} {}", span.name);
                let twice = of_trace.insert(name.clone(), span.clone());
                assert!(twice.is_none(), "{name} twice in a trace");
            }
        }
        traces
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// A controller of files, and the ports of both programs.
struct Stage {
    directory: TempDir,
    ports: Ports,
    /// All agents listen on the same addresses of the loopback device.
    _turn: MutexGuard<'static, ()>,
}

/// The ports of a controller or a relay.
#[derive(Clone, Copy)]
struct Ports {
    streams: u16,
    admin: u16,
}

static TURN: Mutex<()> = Mutex::new(());

impl Ports {
    fn reserve() -> Self {
        let [streams, admin] = ports::reserve().unwrap();
        Self { streams, admin }
    }
}

impl Stage {
    fn new() -> Self {
        let stage = Self {
            directory: tempfile::tempdir().unwrap(),
            ports: Ports::reserve(),
            // A test that failed leaves nothing that the next one minds.
            _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner),
        };
        std::fs::create_dir(stage.objects()).unwrap();
        stage.put(1);
        stage
    }

    fn objects(&self) -> std::path::PathBuf {
        self.directory.path().join("objects")
    }

    /// A Service with this many endpoints, written at once.
    fn put(&self, endpoints: u8) {
        let ready =
            |n| json!({ "addresses": [format!("10.0.0.{n}")], "conditions": { "ready": true } });
        let endpoints: Vec<_> = (1..=endpoints).map(ready).collect();
        let items = [
            service("web", ["10.96.0.10", "fd00:10:96::10"], json!({})),
            slice_of("web", Family::V4, &endpoints),
        ];
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        let new = self.directory.path().join("new.json");
        std::fs::write(&new, list.to_string()).unwrap();
        std::fs::rename(new, self.objects().join("objects.json")).unwrap();
    }

    fn controller(&self, more: &[String]) -> Running {
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args([
                "--source=file",
                "--file-poll=20ms",
                "--plaintext",
                "--debug-listen=",
            ])
            .arg(format!("--listen={HOST}:{}", self.ports.streams))
            .arg(format!("--admin-listen={HOST}:{}", self.ports.admin))
            .arg("--file")
            .arg(self.objects())
            .args(more);
        Running::start(&mut command)
    }

    /// A relay of the controller, and its ports.
    fn relay(&self, more: &[String]) -> (Running, Ports) {
        let ports = Ports::reserve();
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args([
                "--source=controller",
                "--plaintext",
                "--upstream-plaintext",
                "--debug-listen=",
            ])
            .arg(format!("--upstream={HOST}:{}", self.ports.streams))
            .arg(format!("--listen={HOST}:{}", ports.streams))
            .arg(format!("--admin-listen={HOST}:{}", ports.admin))
            .args(more);
        (Running::start(&mut command), ports)
    }

    fn agent(&self, more: &[String]) -> Running {
        self.agent_of(self.ports, more)
    }

    fn agent_of(&self, ports: Ports, more: &[String]) -> Running {
        let mut command = Command::new(program("portolan-agent").unwrap());
        command
            .args(["--dataplane=userspace", "--plaintext", "--debug-listen="])
            .args(["--admin-listen=127.0.0.1:0", "--healthz-listen=127.0.0.1:0"])
            .arg(format!("--controller={HOST}:{}", ports.streams))
            .arg(state_dir(self.directory.path()))
            .args(more);
        Running::start(&mut command)
    }

    fn await_programmed(&self, than: u64) -> u64 {
        self.ports.await_programmed(than)
    }
}

impl Ports {
    /// The revision that the agent has programmed.
    fn programmed(self) -> Option<u64> {
        let address = SocketAddr::from((HOST, self.admin));
        let text = portolan_e2e::cluster::http_get_from(address, "/debug/nodes").ok()?;
        let nodes: serde_json::Value = serde_json::from_str(&text).ok()?;
        nodes["nodes"][0]["programmed"].as_u64()
    }

    fn await_programmed(self, than: u64) -> u64 {
        wait_for("a programmed table", PATIENT, || {
            self.programmed().filter(|revision| *revision > than)
        })
        .unwrap()
    }
}

fn state_dir(directory: &Path) -> String {
    format!("--state-dir={}", directory.join("state").display())
}

#[test]
fn a_change_is_one_trace_from_its_source_to_the_acknowledgement() {
    let runtime = Runtime::new().unwrap();
    let (collector, endpoint) = Collector::start(&runtime);
    let flag = [format!("--otlp-endpoint={endpoint}")];
    let stage = Stage::new();
    let controller = stage.controller(&flag);
    let agent = stage.agent(&flag);
    let first = stage.await_programmed(0);
    stage.put(2);
    let second = stage.await_programmed(first);
    // The last spans are sent when the programs end.
    agent.end();
    controller.end();

    let traces = collector.traces();
    let whole = traces.values().find(|spans| {
        let revision = spans.get("controller change").and_then(revision);
        revision == i64::try_from(second).ok()
    });
    let whole = whole.unwrap_or_else(|| panic!("no trace of {second}: {traces:#?}"));
    let names: Vec<_> = whole.keys().map(String::as_str).collect();
    let expected = [
        "agent acknowledge",
        "agent kernel",
        "agent plan",
        "agent receive",
        "controller change",
        "controller compute",
        "controller publish",
        "controller send",
        "controller source",
    ];
    assert_eq!(names, expected);
    for (child, parent) in [
        ("controller source", "controller change"),
        ("controller compute", "controller change"),
        ("controller publish", "controller change"),
        ("controller send", "controller publish"),
        ("agent receive", "controller send"),
        ("agent plan", "agent receive"),
        ("agent kernel", "agent receive"),
        ("agent acknowledge", "agent kernel"),
    ] {
        assert_eq!(
            whole[child].parent_span_id, whole[parent].span_id,
            "{child}"
        );
        assert!(
            whole[child].end_time_unix_nano >= whole[child].start_time_unix_nano,
            "{child}"
        );
    }
    assert!(whole["controller change"].parent_span_id.is_empty());
    // One machine, one clock.
    let order = [
        "controller source",
        "controller publish",
        "agent receive",
        "agent acknowledge",
    ];
    let ends = order.map(|name| whole[name].end_time_unix_nano);
    assert!(ends.is_sorted(), "{ends:?}");
}

/// The trace of the controller ends at the relay; that of the relay names it, and goes on to the agent.
#[test]
fn a_relay_joins_the_trace_above_to_that_of_its_agents() {
    let runtime = Runtime::new().unwrap();
    let (collector, endpoint) = Collector::start(&runtime);
    let flag = [format!("--otlp-endpoint={endpoint}")];
    let stage = Stage::new();
    let controller = stage.controller(&flag);
    let (relay, ports) = stage.relay(&flag);
    let agent = stage.agent_of(ports, &flag);
    // The controller knows of the relay alone, which has the table before the agent does.
    let first = ports.await_programmed(0);
    stage.put(2);
    let second = ports.await_programmed(first);
    agent.end();
    relay.end();
    controller.end();

    let traces = collector.traces();
    let above = traces.iter().find(|(_, spans)| {
        let of_controller = spans.contains_key("controller source");
        let change = spans.get("controller change").and_then(revision);
        of_controller && change == i64::try_from(second).ok()
    });
    let (above_id, above) = above.unwrap_or_else(|| panic!("no trace of {second}: {traces:#?}"));
    let forward = &above["controller forward"];
    assert_eq!(forward.parent_span_id, above["controller send"].span_id);
    assert!(!above.contains_key("agent receive"));

    let name: String = above_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let below = traces.values().find(|spans| {
        let change = spans.get("controller change");
        change.and_then(|span| text(span, "portolan.upstream_trace")) == Some(name.clone())
    });
    let below = below.unwrap_or_else(|| panic!("no trace names {name}: {traces:#?}"));
    let names: Vec<_> = below.keys().map(String::as_str).collect();
    let expected = [
        "agent acknowledge",
        "agent kernel",
        "agent plan",
        "agent receive",
        "controller change",
        "controller publish",
        "controller send",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        below["agent receive"].parent_span_id,
        below["controller send"].span_id
    );
    // One machine, one clock.
    let received = below["agent receive"].end_time_unix_nano;
    assert!(above["controller publish"].end_time_unix_nano <= received);
    assert!(forward.start_time_unix_nano <= received);
}

#[test]
fn nothing_is_sent_without_the_flag() {
    let runtime = Runtime::new().unwrap();
    let (collector, endpoint) = Collector::start(&runtime);
    let stage = Stage::new();
    let controller = stage.controller(&[]);
    // Changes that are not sampled have no spans either.
    let unsampled = [
        "--otlp-sample=0".to_owned(),
        format!("--otlp-endpoint={endpoint}"),
    ];
    let agent = stage.agent(&unsampled);
    let first = stage.await_programmed(0);
    stage.put(2);
    stage.await_programmed(first);
    agent.end();
    controller.end();
    assert!(collector.is_empty());
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    let mut attributes = span.attributes.iter();
    let found = attributes.find(|one| one.key == key)?;
    found.value.as_ref()?.value.clone()
}

fn revision(span: &Span) -> Option<i64> {
    match attribute(span, "portolan.revision")? {
        Value::IntValue(revision) => Some(revision),
        _ => None,
    }
}

fn text(span: &Span, key: &str) -> Option<String> {
    match attribute(span, key)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}
