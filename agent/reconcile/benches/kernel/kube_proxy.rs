// SPDX-License-Identifier: Apache-2.0

//! A real kube-proxy in IPVS mode, from its start to its last programmed service. It gets the same
//! objects from an otherwise idle API server.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use portolan_e2e::wait::wait_for;
use portolan_netlink::ipvs::Ipvs;

use crate::load::Load;
use crate::{NODE, milliseconds, product, say};

/// The deadline for kube-proxy, far longer than it takes.
const PATIENCE: Duration = Duration::from_secs(150);
/// The pause between two checks; each takes processor time from kube-proxy if there is one
/// processor.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
const NODE_NAME: &str = "node-a";

pub(crate) fn run(load: Load) -> Result<()> {
    let Ok(program) = std::env::var("PORTOLAN_KUBE_PROXY") else {
        return Ok(());
    };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let master = format!("--master=http://{}", listener.local_addr()?);
    let objects = Arc::new(Objects::new(load));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let objects = Arc::clone(&objects);
            std::thread::spawn(move || drop(serve(stream, &objects)));
        }
    });
    let start = Instant::now();
    let mut child = Killed(
        Command::new(program)
            .args([master.as_str(), "--proxy-mode=ipvs", "--oom-score-adj=0"])
            .arg(format!("--hostname-override={NODE_NAME}"))
            .args([
                "--cluster-cidr=10.128.0.0/9",
                "--metrics-bind-address=127.0.0.1:10249",
            ])
            .arg("--healthz-bind-address=127.0.0.1:10256")
            .args(["--conntrack-max-per-core=0", "--conntrack-min=0"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?,
    );
    let expected = (load.services, load.services * load.endpoints);
    let ipvs = Ipvs::open()?;
    let mut looked = Instant::now();
    let running = wait_for("kube-proxy's virtual servers", PATIENCE, || {
        if !matches!(child.0.try_wait(), Ok(None)) {
            return Some(false);
        }
        if looked.elapsed() < BETWEEN_LOOKS {
            return None;
        }
        looked = Instant::now();
        let mut found = (0, 0);
        let seen = ipvs.glance(|_, server| {
            found.0 += 1;
            found.1 += server.real_servers;
        });
        (seen.is_ok() && found == expected).then_some(true)
    })?;
    ensure!(running, "kube-proxy ended");
    say("start", milliseconds(start));
    say("rss", product::memory(child.0.id(), "VmRSS:")?);
    Ok(())
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The API server's answers to lists.
struct Objects {
    services: String,
    slices: String,
    node: String,
}

impl Objects {
    fn new(load: Load) -> Self {
        let (mut services, mut slices) = (Vec::new(), Vec::new());
        for number in 0..load.services {
            let vip = load.vip(number);
            let name = format!("service-{number:05}");
            let mut endpoints = String::new();
            for address in load.endpoints_of(number) {
                let comma = if endpoints.is_empty() { "" } else { "," };
                let _ = write!(
                    endpoints,
                    r#"{comma}{{"addresses":["{address}"],"conditions":{{"ready":true}}}}"#
                );
            }
            let port = r#""name":"http","protocol":"TCP","port""#;
            services.push(format!(
                r#"{{"metadata":{{"name":"{name}","namespace":"bench","uid":"{name}","resourceVersion":"1"}},"spec":{{"clusterIP":"{vip}","clusterIPs":["{vip}"],"ipFamilies":["IPv4"],"type":"ClusterIP","ports":[{{{port}:80,"targetPort":8080}}]}}}}"#
            ));
            slices.push(format!(
                r#"{{"metadata":{{"name":"{name}-1","namespace":"bench","uid":"{name}-1","resourceVersion":"1","labels":{{"kubernetes.io/service-name":"{name}"}}}},"addressType":"IPv4","endpoints":[{endpoints}],"ports":[{{{port}:8080}}]}}"#
            ));
        }
        let node = format!(
            r#"{{"kind":"Node","apiVersion":"v1","metadata":{{"name":"{NODE_NAME}","uid":"n","resourceVersion":"1"}},"spec":{{"podCIDR":"10.128.0.0/24","podCIDRs":["10.128.0.0/24"]}},"status":{{"addresses":[{{"type":"InternalIP","address":"{NODE}"}}]}}}}"#
        );
        Self {
            services: list("ServiceList", "v1", &services),
            slices: list("EndpointSliceList", "discovery.k8s.io/v1", &slices),
            node,
        }
    }

    fn answer(&self, path: &str) -> (u16, String) {
        match path {
            "/api/v1/services" => (200, self.services.clone()),
            "/apis/discovery.k8s.io/v1/endpointslices" => (200, self.slices.clone()),
            "/api/v1/nodes" => (
                200,
                list("NodeList", "v1", std::slice::from_ref(&self.node)),
            ),
            _ if path.starts_with("/api/v1/nodes/") => (200, self.node.clone()),
            "/apis/networking.k8s.io/v1/servicecidrs" => {
                (200, list("ServiceCIDRList", "networking.k8s.io/v1", &[]))
            }
            _ => (404, refusal(404, "NotFound")),
        }
    }
}

fn list(kind: &str, version: &str, items: &[String]) -> String {
    let items = items.join(",");
    format!(
        r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
    )
}

fn refusal(code: u16, reason: &str) -> String {
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"{reason}","code":{code}}}"#
    )
}

/// Answers the requests of one connection. A watch has no events.
fn serve(stream: TcpStream, objects: &Objects) -> Result<()> {
    let (mut reader, mut out) = (BufReader::new(stream.try_clone()?), stream);
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let target = request.split(' ').nth(1).context("no target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        // A list by way of a watch is refused: the client falls back to the plain one.
        let streams = query.contains("sendInitialEvents=true");
        if query.contains("watch=") && !streams {
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n";
            out.write_all(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes())?;
            continue;
        }
        let (code, body) = match request.starts_with("GET ") {
            true if streams => (422, refusal(422, "Invalid")),
            true => objects.answer(path),
            false => (201, "{}".to_owned()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        out.write_all(head.as_bytes())?;
        out.write_all(body.as_bytes())?;
    }
}
