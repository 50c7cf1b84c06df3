//! An API server that is none: the objects of the tests, as CoreDNS's kubernetes plugin asks for them.

use std::io::{BufRead, Write};
use std::net::SocketAddr;

use crate::Result;

/// An API server with the objects of `zone` and nothing else: lists, and watches in which
/// nothing happens.
pub(crate) fn api_server() -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || api_connection(stream));
        }
    });
    Ok(address)
}

fn api_connection(mut stream: std::net::TcpStream) -> Option<()> {
    let mut reader = std::io::BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut request = String::new();
        reader
            .read_line(&mut request)
            .ok()
            .filter(|length| *length > 0)?;
        let mut header = String::from(" ");
        while !header.trim_end().is_empty() || header == " " {
            header.clear();
            reader.read_line(&mut header).ok()?;
        }
        let head = "Content-Type: application/json\r\n";
        if request.contains("sendInitialEvents=true") {
            let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}"#;
            let length = body.len();
            let status = "HTTP/1.1 422 Unprocessable Entity";
            write!(
                stream,
                "{status}\r\n{head}Content-Length: {length}\r\n\r\n{body}"
            )
            .ok()?;
        } else if request.contains("watch=true") || request.contains("watch=1") {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n"
            )
            .ok()?;
            // Until the client goes.
            let _ = std::io::copy(&mut reader, &mut std::io::sink());
            return None;
        } else {
            let body = listing(&request);
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{head}Content-Length: {length}\r\n\r\n{body}"
            )
            .ok()?;
        }
    }
}

/// The list that a request asks for.
fn listing(request: &str) -> String {
    let list = |kind: &str, version: &str, items: &[serde_json::Value]| {
        let metadata = serde_json::json!({"resourceVersion": "7"});
        serde_json::json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items}).to_string()
    };
    let metadata = |name: &str| serde_json::json!({"name": name, "namespace": "default", "uid": name, "resourceVersion": "7"});
    let ports = serde_json::json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let service = |name: &str, spec: serde_json::Value| {
        let mut spec = spec;
        spec["ports"] = ports.clone();
        serde_json::json!({"metadata": metadata(name), "spec": spec})
    };
    let slice = |service: &str, family: &str, endpoints: serde_json::Value| {
        let mut metadata = metadata(&format!("{service}-{family}"));
        metadata["labels"] = serde_json::json!({"kubernetes.io/service-name": service});
        serde_json::json!({"metadata": metadata, "addressType": family, "endpoints": endpoints, "ports": ports})
    };
    if request.contains("/namespaces") {
        let items = ["default", "empty"]
            .map(|name| serde_json::json!({"metadata": {"name": name, "uid": name}}));
        list("NamespaceList", "v1", &items)
    } else if request.contains("/endpointslices") {
        let web = serde_json::json!([{"addresses": ["10.1.0.1"]}, {"addresses": ["10.1.0.9"], "hostname": "both"}]);
        let db = serde_json::json!([
            {"addresses": ["10.1.0.2"], "hostname": "db-0"}, {"addresses": ["10.1.0.3"], "hostname": "db-1"},
            {"addresses": ["10.1.0.4"]}, {"addresses": ["10.1.0.9"], "hostname": "both"},
        ]);
        let db6 = serde_json::json!([{"addresses": ["fd00:1::4"]}]);
        let items = [
            slice("web", "IPv4", web),
            slice("db", "IPv4", db),
            slice("db", "IPv6", db6),
        ];
        list("EndpointSliceList", "discovery.k8s.io/v1", &items)
    } else if request.contains("/services") {
        let headless =
            serde_json::json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]});
        let dual = serde_json::json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        let alias = serde_json::json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"});
        let items = [
            service("web", dual),
            service("db", headless.clone()),
            service("none", headless),
            service("alias", alias),
        ];
        list("ServiceList", "v1", &items)
    } else {
        list("List", "v1", &[])
    }
}
