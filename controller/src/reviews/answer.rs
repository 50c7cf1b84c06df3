//! A TokenReview, `authentication.k8s.io/v1`: what is asked, and what an answer means.

use portolan_auth::Verdict;
use serde::Deserialize;
use serde_json::json;
use tonic::codegen::http::header::{CONTENT_TYPE, HeaderValue};
use tonic::codegen::http::{Method, Request, Uri};

const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// What an API server says of its own trouble, or of that of whom it asks in turn, in lower case.
/// Such words come in `status.error` too, beside what the other authenticators say of the token.
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

/// How much of what an API server says is logged, in characters.
const MAX_QUOTED: usize = 256;

/// An answer that says something of the token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Why it is not good.
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

/// What is asked.
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

/// What an answer says of the token; `Err` if it says nothing of it.
///
/// kube-apiserver answers 201 also for a token that it does not take, with `authenticated` left out
/// and in `error` what its authenticators said: of a deleted pod `[invalid bearer token, service
/// account token has been invalidated]`. It puts there too that it could not look: an etcd that does
/// not answer, a webhook that cannot be reached. Such a no counts for nothing, even if the token is
/// bad besides: it can be found to be so at its next turn, while a good one must not lose its stream.
/// A no without any reason comes from nobody who has looked: every authenticator that did gives one.
pub(super) fn read(text: &str, audience: &str) -> Result<Answer, String> {
    // The parser's error may quote what it read, which has the token in it.
    let review: TokenReview =
        serde_json::from_str(text).map_err(|_| "the answer is no TokenReview".to_owned())?;
    let status = review.status.ok_or("the answer has no status")?;
    if status.authenticated {
        let is_ours = status.audiences.iter().any(|one| one == audience);
        // One that knows no audiences names none: it took the token for itself, not for us.
        let other = || format!("it is for {:?}", quoted(&status.audiences.join(" ")));
        return Ok(Answer {
            revoked: (!is_ours).then(other),
        });
    }
    let said = status.error.to_lowercase();
    if said.is_empty() {
        return Err("the API server gives no reason".to_owned());
    }
    if TROUBLE.iter().any(|trouble| said.contains(trouble)) {
        return Err(quoted(&status.error));
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

    fn answer(status: serde_json::Value) -> Result<Option<String>, String> {
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
    fn a_token_is_asked_about_for_our_audience() {
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
    fn one_that_is_taken_for_us_is_good() {
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
    fn one_that_is_not_taken_is_revoked() {
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
    fn who_could_not_look_says_nothing_of_the_token() {
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
            assert!(error.is_empty() || reason == error, "{reason}");
        }
        assert!(answer(json!({ "user": {} })).is_err());
        assert!(answer(json!(null)).is_err());
        for text in ["", "secret", "{\"status\": \"secret\"}", "[]"] {
            let reason = read(text, AUDIENCE).unwrap_err();
            assert!(!reason.contains("secret"), "{reason}");
        }
    }
}
