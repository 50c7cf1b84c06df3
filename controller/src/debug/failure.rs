// SPDX-License-Identifier: Apache-2.0

//! Errors as JSON: `{"error": "..."}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// A refused request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    status: StatusCode,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn not_found(message: String) -> Self {
        let status = StatusCode::NOT_FOUND;
        Self { status, message }
    }

    pub(crate) fn bad_request(message: String) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self { status, message }
    }

    /// Another replica must be asked.
    pub(crate) fn misdirected(message: String) -> Self {
        let status = StatusCode::MISDIRECTED_REQUEST;
        Self { status, message }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn unavailable(message: &str) -> Self {
        let (status, message) = (StatusCode::SERVICE_UNAVAILABLE, message.to_owned());
        Self { status, message }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}
