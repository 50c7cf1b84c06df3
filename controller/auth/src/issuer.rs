// SPDX-License-Identifier: Apache-2.0

//! The issuer that a token names. The token is not verified: it must come from a trusted place.

use data_encoding::BASE64URL_NOPAD;
use serde::Deserialize;

/// Reason why a text names no issuer. The text is not quoted: it may be a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IssuerError {
    /// It is no JSON Web Token.
    #[error("it is no JSON Web Token")]
    NotToken,
    /// Its claim `iss` is absent or empty.
    #[error("it has no claim iss")]
    NoIssuer,
}

#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    iss: String,
}

/// The claim `iss` of a token. Neither its signature nor its times are verified.
///
/// # Errors
/// If it is no token or names no issuer.
pub fn unverified_issuer(token: &str) -> Result<String, IssuerError> {
    let parts: Vec<_> = token.trim().split('.').collect();
    let [_, claims, _] = parts[..] else {
        return Err(IssuerError::NotToken);
    };
    let json = BASE64URL_NOPAD.decode(claims.as_bytes());
    let json = json.map_err(|_| IssuerError::NotToken)?;
    let claims: Claims = serde_json::from_slice(&json).map_err(|_| IssuerError::NotToken)?;
    let issuer = Some(claims.iss).filter(|issuer| !issuer.is_empty());
    issuer.ok_or(IssuerError::NoIssuer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln\n", BASE64URL_NOPAD.encode(claims.as_bytes()))
    }

    #[test]
    fn the_issuer_is_read_from_the_claims() {
        let claims = r#"{"aud": ["https://a"], "iss": "https://kubernetes.default.svc", "exp": 1}"#;
        let issuer = unverified_issuer(&token(claims));
        assert_eq!(issuer.as_deref(), Ok("https://kubernetes.default.svc"));
        for no_issuer in ["{}", r#"{"iss": ""}"#] {
            let error = unverified_issuer(&token(no_issuer));
            assert_eq!(error, Err(IssuerError::NoIssuer), "{no_issuer}");
        }
        for bad in ["", "a", "a.b", "a.!.c", "a.b.c.d", &token("[")] {
            assert_eq!(unverified_issuer(bad), Err(IssuerError::NotToken), "{bad}");
        }
    }
}
