// SPDX-License-Identifier: Apache-2.0

//! Answers to browsers: their headers, and the answer to a question.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use form_urlencoded::{Serializer, parse};
use maud::Markup;
use portolan_select::Explanation;
use portolan_status::{Answer, Ask, Asked, Asset, BadQuery, CONTENT_SECURITY_POLICY, Endpoint};

use crate::debug::{Debug, Failure};

/// A page and its status.
#[derive(Debug)]
pub(super) struct Answered(pub(super) StatusCode, pub(super) Markup);

impl IntoResponse for Answered {
    fn into_response(self) -> Response {
        (self.0, Html(self.1.into_string())).into_response()
    }
}

impl From<BadQuery> for Failure {
    fn from(error: BadQuery) -> Self {
        Self::bad_request(error.to_string())
    }
}

/// Adds the headers that protect a page: what it may load, and that nobody keeps or frames it.
pub(super) async fn secured(mut response: Response) -> Response {
    const HEADERS: [(HeaderName, &str); 5] = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// The answer with a file.
pub(super) fn asset_of(asset: Asset) -> Response {
    ([(header::CONTENT_TYPE, asset.content_type)], asset.text).into_response()
}

/// The values of parameters; empty where one is missing.
pub(super) fn parameters<const N: usize>(query: &str, names: [&str; N]) -> [String; N] {
    names.map(|wanted| {
        let mut all = parse(query.as_bytes());
        let found = all.find(|(name, _)| name == wanted);
        found
            .map(|(_, value)| value.into_owned())
            .unwrap_or_default()
    })
}

/// Puts a question, if there is one.
pub(super) async fn ask(debug: &Debug, asked: Asked) -> (StatusCode, Ask) {
    if asked.address.is_empty() {
        let answer = None;
        return (StatusCode::OK, Ask { asked, answer });
    }
    let (status, answer) = match debug.explain(&question(&asked)).await {
        Ok(explanation) => (StatusCode::OK, Ok(explained(explanation))),
        Err(failure) => (failure.status(), Err(failure.message)),
    };
    let answer = Some(answer);
    (status, Ask { asked, answer })
}

/// The query of a question, as dumps have it. Fields that are not filled in are missing there.
fn question(asked: &Asked) -> String {
    let fields = [
        ("address", &asked.address),
        ("protocol", &asked.protocol),
        ("node", &asked.node),
    ];
    let filled = fields.into_iter().filter(|(_, value)| !value.is_empty());
    Serializer::new(String::new()).extend_pairs(filled).finish()
}

fn explained(explanation: Explanation) -> Answer {
    let endpoints = explanation.endpoints.into_iter().map(|one| Endpoint {
        used: one.used,
        address: one.address.to_string(),
        weight: one.weight,
        node: one.node.unwrap_or_default(),
        zone: one.zone.unwrap_or_default(),
        reason: one.reason,
    });
    Answer {
        record: explanation.record,
        kind: format!("{:?}", explanation.kind),
        policy: format!("{:?}", explanation.lists),
        zone: explanation.zone.unwrap_or_default(),
        endpoints: endpoints.collect(),
        notes: explanation.notes,
    }
}
