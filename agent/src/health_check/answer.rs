// SPDX-License-Identifier: Apache-2.0

//! Answer to a load balancer.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::ServiceKey;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Answer for a Service with a number of endpoints on this node, and the agent's health.
pub(super) fn answer(service: &ServiceKey, endpoints: usize, healthy: bool) -> Response {
    let mut response = Response::new(Body::from(body(service, endpoints, healthy)));
    if endpoints == 0 || !healthy {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    let nosniff = HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    headers.insert(WEIGHT, HeaderValue::from(endpoints));
    response
}

/// Answer on a connection that outlived its Service.
pub(super) fn gone() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

/// Body identical to kube-proxy's, with tabs and without a final newline. Names of Kubernetes objects need
/// no escaping.
fn body(service: &ServiceKey, endpoints: usize, healthy: bool) -> String {
    let ServiceKey {
        namespace, name, ..
    } = service;
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\t\
         \"localEndpoints\": {endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    )
}
