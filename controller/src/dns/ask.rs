// SPDX-License-Identifier: Apache-2.0

//! `/debug/dns?name=N&type=T`, with `&cluster=C` for names of imported Services: what is answered to a question, in the form of zone files.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::routing::get;
use axum::{Json, Router};
use portolan_dns::{Name, RecordType, SharedZone, code_name};
use serde_json::{Value, json};

use super::clusterset::Zones;
use crate::debug::Failure;

pub(super) fn routes(zone: Arc<SharedZone>) -> Router {
    Router::new().route("/dns", get(ask)).with_state(zone)
}

/// Routes of zones of several clusters: `cluster=NAME` says which.
pub(super) fn cluster_routes(zones: Zones) -> Router {
    Router::new()
        .route("/dns", get(ask_cluster))
        .with_state(zones)
}

async fn ask(
    State(zone): State<Arc<SharedZone>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Failure> {
    let question = parse(&query.unwrap_or_default())?;
    Ok(answer(&zone, &question))
}

async fn ask_cluster(
    State(zones): State<Zones>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Failure> {
    let question = parse(&query.unwrap_or_default())?;
    let cluster = &question.cluster;
    let zone = zones.get(cluster);
    let missing = || Failure::bad_request(format!("cluster: {cluster:?}: no names of its imports"));
    let zone = zone.ok_or_else(missing)?;
    Ok(answer(&zone, &question))
}

/// DNS question of a request.
#[derive(Debug)]
struct Question {
    name: Name,
    kind: RecordType,
    /// The cluster that asks; empty for a controller of one.
    cluster: String,
}

fn answer(zone: &SharedZone, question: &Question) -> Json<Value> {
    let Question { name, kind, .. } = question;
    let answer = zone.read().answer(name, *kind);
    let lines = |records: &[_]| records.iter().map(ToString::to_string).collect::<Vec<_>>();
    Json(json!({
        "name": name.to_string(),
        "type": kind.to_string(),
        "code": code_name(answer.code),
        "answers": lines(&answer.answers),
        "authorities": lines(&answer.authorities),
        "additionals": lines(&answer.additionals),
    }))
}

/// The type may be left out, and is A then.
fn parse(query: &str) -> Result<Question, Failure> {
    let (mut name, mut kind, mut cluster) = (None, RecordType::A, String::new());
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
            "cluster" => cluster = value.into_owned(),
            other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
        }
    }
    let missing = || Failure::bad_request("name: missing".to_owned());
    Ok(Question {
        name: name.ok_or_else(missing)?,
        kind,
        cluster,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_read_and_what_is_wrong_is_named() {
        let text = "name=_http._tcp.web.default.svc.cluster.local&type=srv&cluster=eu-1";
        let Question {
            name,
            kind,
            cluster,
        } = parse(text).unwrap();
        assert_eq!(cluster, "eu-1");
        assert_eq!(
            name.to_string(),
            "_http._tcp.web.default.svc.cluster.local."
        );
        assert_eq!(kind, RecordType::SRV);
        assert_eq!(parse("name=a.").unwrap().kind, RecordType::A);
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
