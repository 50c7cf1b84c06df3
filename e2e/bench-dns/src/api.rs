// SPDX-License-Identifier: Apache-2.0

//! An API server with a fixed set of objects: lists, and watches without events.

use std::io::{BufRead, BufReader, Write, copy, sink};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use anyhow::Result;
use serde_json::json;

use crate::world::items;

/// Starts to serve, until the process ends. Returns the address.
pub(crate) fn serve(services: u32) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Each connection has its own thread, which ends with it.
            thread::spawn(move || connection(stream, services));
        }
    });
    Ok(address)
}

fn connection(mut stream: TcpStream, services: u32) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let head = "Content-Type: application/json\r\n";
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut header = String::new();
        while reader.read_line(&mut header)? > 2 {
            header.clear();
        }
        if request.contains("sendInitialEvents=true") {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422});
            reply(&mut stream, "422 Unprocessable Entity", &status.to_string())?;
        } else if request.contains("watch=") {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\n{head}Transfer-Encoding: chunked\r\n\r\n"
            )?;
            copy(&mut reader, &mut sink())?;
            return Ok(());
        } else {
            let (version, kind) = kind_of(&request);
            let list = json!({"kind": kind, "apiVersion": version,
                "metadata": {"resourceVersion": "7"}, "items": items(services, &request)});
            reply(&mut stream, "200 OK", &list.to_string())?;
        }
    }
}

/// The version and the kind of a list, which its client needs to decode the items.
fn kind_of(request: &str) -> (&'static str, &'static str) {
    match request {
        path if path.contains("/namespaces") => ("v1", "NamespaceList"),
        path if path.contains("/endpointslices") => ("discovery.k8s.io/v1", "EndpointSliceList"),
        path if path.contains("/services") => ("v1", "ServiceList"),
        _ => ("v1", "List"),
    }
}

fn reply(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}
