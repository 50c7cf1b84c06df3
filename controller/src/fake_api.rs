// SPDX-License-Identifier: Apache-2.0

//! For tests: an API server with a few objects. It knows get, update and list, and refuses all else.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body as RequestBody;
use serde_json::{Value, json};
use tower::service_fn;

/// The objects by path, and the requests so far.
#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    version: u64,
    requests: Vec<String>,
}

/// The server.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeApi(Arc<Mutex<State>>);

impl FakeApi {
    /// Adds or replaces an object.
    pub(crate) fn put(&self, path: &str, mut object: Value) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = state.version.to_string().into();
        state.objects.insert(path.to_owned(), object);
    }

    /// Removes an object.
    pub(crate) fn remove(&self, path: &str) {
        self.0.lock().unwrap().objects.remove(path);
    }

    /// Refuses all requests for a path.
    pub(crate) fn forbid(&self, path: &str) {
        let mut state = self.0.lock().unwrap();
        state.objects.insert(path.to_owned(), Value::Null);
    }

    /// An object as it is now.
    pub(crate) fn get(&self, path: &str) -> Value {
        self.0.lock().unwrap().objects[path].clone()
    }

    /// The requests since the last call, as `METHOD PATH STATUS`.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().requests)
    }

    /// A client of the server.
    pub(crate) fn client(&self) -> Client {
        let this = self.clone();
        let service = service_fn(move |request: Request<RequestBody>| {
            let this = this.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let path = head.uri.path().to_owned();
                // A client is slower than its neighbour now and then.
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(this.answer(&head.method, &path, &body))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Response<Body> {
        let mut state = self.0.lock().unwrap();
        let (status, answer) = state.answer(method, path, body);
        state.requests.push(format!("{method} {path} {status}"));
        let answer = Body::from(answer.to_string());
        Response::builder().status(status).body(answer).unwrap()
    }
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let Some(found) = self.objects.get(path) else {
            return failure(404);
        };
        if found.is_null() {
            return failure(403);
        }
        if method == Method::GET {
            return (200, found.clone());
        }
        if method != Method::PUT {
            return failure(403);
        }
        let mut object: Value = serde_json::from_slice(body).unwrap();
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(&object) != version(found) {
            return failure(409);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.to_owned(), object.clone());
        (200, object)
    }
}

fn failure(code: u16) -> (u16, Value) {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": format!("refused with {code}"), "reason": "Refused", "code": code,
    });
    (code, status)
}
