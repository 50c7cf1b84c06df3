// SPDX-License-Identifier: Apache-2.0

//! An API server of a fixed set of objects, for benchmarks: it answers lists at once and its watches have no
//! events, so that a real kube-proxy's own work is all that is measured.

use std::io::{BufRead as _, BufReader, Read as _, Result, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

/// The objects that a kube-proxy asks for.
#[derive(Clone, Debug, Default)]
pub struct StaticObjects {
    /// Services.
    pub services: Vec<Value>,
    /// `EndpointSlices` of discovery.k8s.io/v1.
    pub slices: Vec<Value>,
    /// The one Node.
    pub node: Value,
}

/// Serves the objects without TLS, and returns the URL. It ends with the process.
///
/// # Errors
/// If the listener has no address.
pub fn serve(listener: TcpListener, objects: StaticObjects) -> Result<String> {
    let url = format!("http://{}", listener.local_addr()?);
    let lists = Arc::new(Lists::new(objects));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lists = Arc::clone(&lists);
            thread::spawn(move || drop(answer_all(stream, &lists)));
        }
    });
    Ok(url)
}

/// The answers, as text.
struct Lists {
    services: String,
    slices: String,
    nodes: String,
    node: String,
    service_cidrs: String,
}

impl Lists {
    fn new(objects: StaticObjects) -> Self {
        let node = objects.node.to_string();
        Self {
            services: list("ServiceList", "v1", objects.services),
            slices: list("EndpointSliceList", "discovery.k8s.io/v1", objects.slices),
            nodes: list("NodeList", "v1", vec![objects.node]),
            node,
            service_cidrs: list("ServiceCIDRList", "networking.k8s.io/v1", Vec::new()),
        }
    }

    /// The status and the body for a path.
    fn answer(&self, path: &str) -> (u16, String) {
        let body = match path {
            "/api/v1/services" => &self.services,
            "/apis/discovery.k8s.io/v1/endpointslices" => &self.slices,
            "/api/v1/nodes" => &self.nodes,
            "/apis/networking.k8s.io/v1/servicecidrs" => &self.service_cidrs,
            _ if path.starts_with("/api/v1/nodes/") => &self.node,
            _ => return (404, refusal(404, "NotFound")),
        };
        (200, body.clone())
    }
}

fn list(kind: &str, version: &str, items: Vec<Value>) -> String {
    let metadata = json!({ "resourceVersion": "1" });
    json!({ "kind": kind, "apiVersion": version, "metadata": metadata, "items": items }).to_string()
}

fn refusal(code: u16, reason: &str) -> String {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code })
        .to_string()
}

/// Answers the requests of one connection.
fn answer_all(stream: TcpStream, lists: &Lists) -> Result<()> {
    let (mut reader, mut out) = (BufReader::new(stream.try_clone()?), stream);
    while let Some(request) = read_request(&mut reader)? {
        let target = request.split(' ').nth(1).unwrap_or_default();
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
            true => lists.answer(path),
            false => (201, "{}".to_owned()),
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        out.write_all(head.as_bytes())?;
        out.write_all(body.as_bytes())?;
    }
    Ok(())
}

/// The first line of the next request, whose body is read too; none at the end of the stream.
fn read_request(reader: &mut BufReader<TcpStream>) -> Result<Option<String>> {
    let mut request = String::new();
    if reader.read_line(&mut request)? == 0 {
        return Ok(None);
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
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
    Ok(Some(request))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_answered_and_watches_stay_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let objects = StaticObjects {
            services: vec![json!({ "metadata": { "name": "web" } })],
            ..StaticObjects::default()
        };
        let url = serve(listener, objects).unwrap();
        let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut ask = |target: &str| {
            let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut status = String::new();
            reader.read_line(&mut status).unwrap();
            let (mut length, mut header) = (0, String::new());
            while reader.read_line(&mut header).unwrap() > 2 {
                if let Some(value) = header.strip_prefix("Content-Length: ") {
                    length = value.trim().parse().unwrap();
                }
                header.clear();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            (status, String::from_utf8(body).unwrap())
        };
        let (status, body) = ask("/api/v1/services?limit=500");
        assert!(status.contains("200"), "{status}");
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(list["items"][0]["metadata"]["name"], "web");
        assert!(
            ask("/api/v1/services?watch=1&sendInitialEvents=true")
                .0
                .contains("422")
        );
        assert!(ask("/api/v1/pods").0.contains("404"));
        // No event, and no end either: the head is all there is.
        let (status, body) = ask("/api/v1/services?watch=true");
        assert!(status.contains("200") && body.is_empty(), "{status}{body}");
    }
}
