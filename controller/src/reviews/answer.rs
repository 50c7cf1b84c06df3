// SPDX-License-Identifier: Apache-2.0

//! TokenReviews of `authentication.k8s.io/v1`: the request, and the meaning of answers.

use portolan_auth::Verdict;
use serde::Deserialize;
use serde_json::json;
use tonic::codegen::http::header::{CONTENT_TYPE, HeaderValue};
use tonic::codegen::http::{Method, Request, Uri};

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Words, in lower case, by which an API server reports trouble of its own or of a webhook. They appear
/// in `status.error` too, next to the messages of authenticators about the token.
const TROUBLE: [&str; 15] = [
    "connection refused",
    "connection reset",
    "context canceled",
    "deadline exceeded",
    "dial tcp",
    "etcdserver",
    "eof",
    "failed to call webhook",
    "internal error",
    "not initialized",
    "timed out",
    "timeout",
    "too many requests",
    "unavailable",
    "x509",
];

/// Length limit of quoted messages, in characters.
const MAX_QUOTED: usize = 256;

/// An answer with a verdict on the token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The reason why the token is not accepted, if it is not.
    pub(super) revoked: Option<String>,
}

#[derive(Debug, Deserialize)]
struct TokenReview {
    status: Option<Status>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    authenticated: bool,
    audiences: Vec<String>,
    error: String,
}

impl Answer {
    pub(super) fn verdict(&self) -> Verdict {
        match self.revoked {
            None => Verdict::Good,
            Some(_) => Verdict::Revoked,
        }
    }
}

/// An answer without a verdict on the token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoVerdict {
    /// The answer has another form.
    #[error("the answer is not a TokenReview")]
    Malformed,
    /// The answer has no status.
    #[error("the answer has no status")]
    NoStatus,
    /// The token is not authenticated, without a reason.
    #[error("the API server gives no reason")]
    NoReason,
    /// The API server could not check the token.
    #[error("{0}")]
    Trouble(String),
}

/// The request for a review.
pub(super) fn request(token: &str, audience: &str) -> Request<Vec<u8>> {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": { "token": token, "audiences": [audience] },
    });
    let mut request = Request::new(review.to_string().into_bytes());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(PATH);
    let json = HeaderValue::from_static("application/json");
    request.headers_mut().insert(CONTENT_TYPE, json);
    request
}

/// Reads the verdict of an answer.
///
/// kube-apiserver answers 201 also for a token that it does not accept, without `authenticated`, and
/// with the messages of its authenticators in `error`: for a deleted pod `[invalid bearer token, service
/// account token has been invalidated]`. `error` also reports that the token could not be checked: etcd
/// does not answer, a webhook cannot be reached. Such an answer is no verdict, even if the token is
/// invalid as well: the next review will tell, and a valid token must not lose its stream. A rejection
/// without any reason is no verdict either: every authenticator that checks a token gives one.
///
/// # Errors
/// If the answer has no verdict.
pub(super) fn read(text: &str, audience: &str) -> Result<Answer, NoVerdict> {
    // The parser's error may quote its input, which contains the token.
    let review: TokenReview = serde_json::from_str(text).map_err(|_| NoVerdict::Malformed)?;
    let status = review.status.ok_or(NoVerdict::NoStatus)?;
    if status.authenticated {
        let is_ours = status.audiences.iter().any(|one| one == audience);
        // An authenticator without audiences names none: it accepted the token for itself.
        let other = || format!("it is for {:?}", quoted(&status.audiences.join(" ")));
        return Ok(Answer {
            revoked: (!is_ours).then(other),
        });
    }
    let message = status.error.to_lowercase();
    if message.is_empty() {
        return Err(NoVerdict::NoReason);
    }
    if TROUBLE.iter().any(|trouble| message.contains(trouble)) {
        return Err(NoVerdict::Trouble(quoted(&status.error)));
    }
    Ok(Answer {
        revoked: Some(quoted(&status.error)),
    })
}

fn quoted(text: &str) -> String {
    text.chars().take(MAX_QUOTED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUDIENCE: &str = "portolan-controller";

    fn answer(status: serde_json::Value) -> Result<Option<String>, NoVerdict> {
        let review = json!({
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": { "creationTimestamp": null },
            "spec": { "token": "secret", "audiences": [AUDIENCE] },
            "status": status,
        });
        read(&review.to_string(), AUDIENCE).map(|answer| answer.revoked)
    }

    #[test]
    fn reviews_name_the_audience() {
        let request = request("a.b.c", AUDIENCE);
        assert_eq!(
            (request.method(), request.uri().path()),
            (&Method::POST, PATH)
        );
        let review: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
        let spec = json!({ "token": "a.b.c", "audiences": [AUDIENCE] });
        assert_eq!(
            (&review["kind"], &review["spec"]),
            (&json!("TokenReview"), &spec)
        );
    }

    #[test]
    fn a_token_for_the_audience_is_accepted() {
        let user = json!({ "username": "system:serviceaccount:kube-system:portolan-agent" });
        let of = |audiences| {
            answer(json!({ "authenticated": true, "user": user, "audiences": audiences })).unwrap()
        };
        assert_eq!(of(json!([AUDIENCE])), None);
        assert_eq!(of(json!(["other", AUDIENCE])), None);
        assert!(of(json!(["other"])).unwrap().contains("other"));
        let unaware = answer(json!({ "authenticated": true, "user": user }));
        assert!(unaware.unwrap().is_some());
    }

    #[test]
    fn a_rejected_token_is_revoked() {
        for error in [
            "[invalid bearer token, service account token has been invalidated]",
            "[invalid bearer token, service account token has expired]",
            "[invalid bearer token, serviceaccounts \"portolan-agent\" not found]",
            "invalid bearer token",
        ] {
            let status = json!({ "user": {}, "error": error });
            assert_eq!(answer(status), Ok(Some(error.to_owned())));
            let status = json!({ "authenticated": false, "error": error });
            assert_eq!(answer(status), Ok(Some(error.to_owned())));
        }
    }

    #[test]
    fn trouble_of_the_api_server_is_no_verdict() {
        for error in [
            "[invalid bearer token, etcdserver: request timed out]",
            "[invalid bearer token, etcdserver: leader changed]",
            "[invalid bearer token, Post \"https://10.0.0.1/authenticate\": dial tcp 10.0.0.1:443: connect: connection refused]",
            "[invalid bearer token, oidc: authenticator not initialized]",
            "context deadline exceeded",
            "Internal error occurred: x",
            "",
        ] {
            let reason = answer(json!({ "user": {}, "error": error })).unwrap_err();
            let expected = match error {
                "" => NoVerdict::NoReason,
                _ => NoVerdict::Trouble(error.to_owned()),
            };
            assert_eq!(reason, expected);
        }
        assert!(answer(json!({ "user": {} })).is_err());
        assert!(answer(json!(null)).is_err());
        for text in ["", "secret", "{\"status\": \"secret\"}", "[]"] {
            let reason = read(text, AUDIENCE).unwrap_err().to_string();
            assert!(!reason.contains("secret"), "{reason}");
        }
    }
}
