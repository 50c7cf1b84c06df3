// SPDX-License-Identifier: Apache-2.0

//! An API server whose answers are scripted.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use kube::client::Body as RequestBody;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tower_test::mock::{Handle, SendResponse, pair};

type Answer = Response<Body>;

/// The newest version of a server that was not restored.
const NEWEST: u64 = 1_000_000;

/// The server's side.
pub(super) struct Server {
    calls: mpsc::Receiver<Call>,
    newest: Arc<AtomicU64>,
    /// Requests that the test has not expected yet: three watches send theirs in any order.
    waiting: Vec<Call>,
}

/// One request.
pub(super) struct Call {
    request: Request<RequestBody>,
    respond: SendResponse<Answer>,
}

/// The server's end of an open watch. Dropping it closes the connection.
pub(super) struct Stream(mpsc::Sender<Result<String, Infallible>>);

pub(super) fn start() -> (kube::Client, Server) {
    let (service, handle) = pair();
    let (sender, calls) = mpsc::channel(64);
    let newest = Arc::new(AtomicU64::new(NEWEST));
    tokio::spawn(pass_on(handle, sender, Arc::clone(&newest)));
    let server = Server {
        calls,
        newest,
        waiting: Vec::new(),
    };
    (kube::Client::new(service, "default"), server)
}

/// Passes requests on, but answers itself those that only ask how far the server is.
async fn pass_on(
    mut handle: Handle<Request<RequestBody>, Answer>,
    calls: mpsc::Sender<Call>,
    newest: Arc<AtomicU64>,
) {
    while let Some((request, respond)) = handle.next_request().await {
        let call = Call { request, respond };
        let newest = newest.load(Ordering::SeqCst);
        if !call.is_probe() {
            if calls.send(call).await.is_err() {
                return;
            }
        } else if newest > 0 {
            call.answer_list(&[], &newest.to_string(), None);
        } else {
            call.fail(503);
        }
    }
}

impl Server {
    /// Sets the server's newest version; 0 makes requests for it fail.
    pub(super) fn set_newest(&self, version: u64) {
        self.newest.store(version, Ordering::SeqCst);
    }

    /// The next request for this path.
    pub(super) async fn next(&mut self, path: &str) -> Call {
        loop {
            let is_it = |call: &Call| call.request.uri().path() == path;
            if let Some(index) = self.waiting.iter().position(is_it) {
                return self.waiting.remove(index);
            }
            let call = timeout(Duration::from_secs(3600), self.calls.recv());
            let call = call.await.expect("a request in time").expect("a client");
            self.waiting.push(call);
        }
    }

    /// Answers a listing with one page.
    pub(super) async fn list(&mut self, path: &str, items: &[Value], version: &str) {
        let call = self.next(path).await;
        assert!(!call.query().contains("watch=true"), "{}", call.query());
        call.answer_list(items, version, None);
    }

    /// Opens a watch.
    pub(super) async fn watch(&mut self, path: &str) -> Stream {
        let call = self.next(path).await;
        assert!(call.query().contains("watch=true"), "{}", call.query());
        call.open()
    }
}

impl Call {
    fn is_probe(&self) -> bool {
        let mut parts = self.query().split('&');
        !self.query().contains("watch=true") && parts.any(|part| part == "limit=1")
    }

    pub(super) fn query(&self) -> &str {
        self.request.uri().query().unwrap_or_default()
    }

    pub(super) fn accept(&self) -> &str {
        let accept = self.request.headers().get("accept");
        accept
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// The object that is to be written.
    pub(super) async fn object(&mut self) -> Value {
        assert_eq!(self.request.method(), "POST");
        let body = std::mem::replace(self.request.body_mut(), RequestBody::empty());
        let bytes = body.collect_bytes().await.expect("a body");
        serde_json::from_slice(&bytes).expect("an object")
    }

    pub(super) fn answer_list(self, items: &[Value], version: &str, more: Option<&str>) {
        let list = json!({
            "apiVersion": "v1",
            "kind": "List",
            "metadata": {"resourceVersion": version, "continue": more},
            "items": items,
        });
        self.respond
            .send_response(Response::new(Body::from(list.to_string())));
    }

    /// Answers with an object.
    pub(super) fn answer(self, object: &Value) {
        self.respond
            .send_response(Response::new(Body::from(object.to_string())));
    }

    /// Answers with an error.
    pub(super) fn fail(self, code: u16) {
        let response = Response::builder()
            .status(code)
            .body(status(code).to_string().into());
        self.respond.send_response(response.unwrap());
    }

    pub(super) fn open(self) -> Stream {
        let (sender, receiver) = mpsc::channel(1);
        let lines = ReceiverStream::new(receiver);
        self.respond
            .send_response(Response::new(Body::from_stream(lines)));
        Stream(sender)
    }
}

impl Stream {
    pub(super) async fn send(&mut self, kind: &str, object: Value) {
        let event = json!({"type": kind, "object": object});
        self.0
            .send(Ok(format!("{event}\n")))
            .await
            .expect("an open watch");
    }

    pub(super) async fn bookmark(&mut self, version: &str) {
        let metadata = json!({"resourceVersion": version});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        self.send("BOOKMARK", object).await;
    }

    /// Ends a listing.
    pub(super) async fn listed(&mut self, version: &str) {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        self.send("BOOKMARK", object).await;
    }

    /// Something that is no event.
    pub(super) async fn send_line(&mut self, line: &str) {
        let sent = self.0.send(Ok(format!("{line}\n"))).await;
        sent.expect("an open watch");
    }

    /// Expires the version (410).
    pub(super) async fn gone(&mut self) {
        self.error(410).await;
    }

    /// The watch ends for a reason.
    pub(super) async fn error(&mut self, code: u16) {
        self.send("ERROR", status(code)).await;
    }
}

fn status(code: u16) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "message": "scripted",
        "reason": "Scripted",
        "code": code,
    })
}
