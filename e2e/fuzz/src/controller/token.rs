// SPDX-License-Identifier: Apache-2.0

//! Tokens, as text and as signed claims.
//!
//! Invariants: an unsigned token gets no frames. A signed token gets frames only if its claims
//! state all required values: the issuer, the audience, the node of the Hello, and a time of expiry
//! to come.

use std::time::{SystemTime, UNIX_EPOCH};

use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message as Said;
use portolan_serve::ServeConfig;
use serde_json::Value;

use super::Outcome;
use super::signer::{AUDIENCE, ISSUER, NODE, authentication, sign};
use super::stream::{Server, framed, said};
use crate::seeds;

/// The controller's tolerance for clock skew, in seconds, and a margin.
const LEEWAY: f64 = 31.0;

/// Runs the value of an `authorization` header.
pub(super) fn text(input: &[u8]) -> Outcome {
    let frames = ask(input);
    assert_eq!(frames, 0, "nobody signed it");
    Outcome::default()
}

/// Runs claims.
pub(super) fn claims(input: &[u8]) -> Outcome {
    let Ok(claims) = serde_json::from_slice::<Value>(input) else {
        return Outcome::default();
    };
    let Some(token) = sign(&claims) else {
        return Outcome::default();
    };
    let frames = ask(format!("Bearer {token}").as_bytes());
    if frames > 0 {
        assert!(may_enter(&claims), "{claims}");
    }
    Outcome {
        admitted: usize::from(frames > 0),
        frames,
        ..Outcome::default()
    }
}

fn ask(authorization: &[u8]) -> usize {
    let config = ServeConfig {
        authentication: authentication(),
        ..ServeConfig::default()
    };
    let hello = v1::Hello {
        node: NODE.to_owned(),
        ..seeds::hello()
    };
    let body = framed([&said(Said::Hello(hello))[..]].into_iter());
    let answer = Server::new(config).ask(&body, Some(authorization));
    answer.frames.len()
}

/// The admission rule, written independently of the controller's code.
fn may_enter(claims: &Value) -> bool {
    let one_of = |value: &Value, wanted: &str| match value {
        Value::Array(values) => values.iter().any(|value| value == wanted),
        value => value == wanted,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since.map_or(0.0, |since| since.as_secs_f64());
    let expires = claims["exp"].as_f64().unwrap_or(0.0);
    one_of(&claims["aud"], AUDIENCE)
        && one_of(&claims["iss"], ISSUER)
        && claims["kubernetes.io"]["node"]["name"] == NODE
        && expires > now - LEEWAY
}
