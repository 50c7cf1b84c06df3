// SPDX-License-Identifier: Apache-2.0

//! `/debug/dns?name=N&type=T`: what is answered to a question, in the form of zone files.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::routing::get;
use axum::{Json, Router};
use portolan_dns::{Name, RecordType, SharedZone, code_name};
use serde_json::{Value, json};

use crate::debug::Failure;

pub(super) fn routes(zone: Arc<SharedZone>) -> Router {
    Router::new().route("/dns", get(ask)).with_state(zone)
}

async fn ask(
    State(zone): State<Arc<SharedZone>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Failure> {
    let (name, kind) = parse(&query.unwrap_or_default())?;
    let answer = zone.read().answer(&name, kind);
    let lines = |records: &[_]| records.iter().map(ToString::to_string).collect::<Vec<_>>();
    Ok(Json(json!({
        "name": name.to_string(),
        "type": kind.to_string(),
        "code": code_name(answer.code),
        "answers": lines(&answer.answers),
        "authorities": lines(&answer.authorities),
        "additionals": lines(&answer.additionals),
    })))
}

/// The type may be left out, and is A then.
fn parse(query: &str) -> Result<(Name, RecordType), Failure> {
    let (mut name, mut kind) = (None, RecordType::A);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong = |why: String| Failure::bad_request(format!("{key}: {value:?}: {why}"));
        match &*key {
            "name" => {
                let text = format!("{}.", value.trim_end_matches('.'));
                name = Some(Name::from_ascii(text).map_err(|error| wrong(error.to_string()))?);
            }
            "type" => {
                let parsed = value.to_ascii_uppercase().parse();
                kind = parsed.map_err(|_| wrong("no record type".to_owned()))?;
            }
            other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
        }
    }
    let missing = || Failure::bad_request("name: missing".to_owned());
    Ok((name.ok_or_else(missing)?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_and_what_is_wrong_is_named() {
        let (name, kind) = parse("name=_http._tcp.web.default.svc.cluster.local&type=srv").unwrap();
        assert_eq!(
            name.to_string(),
            "_http._tcp.web.default.svc.cluster.local."
        );
        assert_eq!(kind, RecordType::SRV);
        assert_eq!(parse("name=a.").unwrap().1, RecordType::A);
        for (query, field) in [
            ("", "name: "),
            ("name=a..b", "name: "),
            ("name=a&type=Q", "type: "),
            ("name=a&typ=A", "typ: "),
        ] {
            let error = parse(query).unwrap_err().message;
            assert!(error.starts_with(field), "{query}: {error}");
        }
    }
}
