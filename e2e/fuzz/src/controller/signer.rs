// SPDX-License-Identifier: Apache-2.0

//! A signer of tokens, with a key that is generated in each process.

use std::sync::{Arc, LazyLock};

use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use portolan_auth::{Authentication, KeySet, TokenConfig, TokenRole, TokenVerifier};
use rcgen::KeyPair;
use serde_json::Value;
use tokio::sync::{Notify, watch};

/// The issuer of valid tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc";
/// The audience of valid tokens.
pub const AUDIENCE: &str = "portolan-controller";
/// The node that the holder of a token states.
pub const NODE: &str = "a";

const KEY_ID: &str = "1";

static KEY: LazyLock<EncodingKey> = LazyLock::new(|| {
    let pair = KeyPair::generate().expect("a key");
    EncodingKey::from_ec_der(&pair.serialize_der())
});

static KEYS: LazyLock<Arc<KeySet>> = LazyLock::new(|| {
    let mut public = Jwk::from_encoding_key(&KEY, Algorithm::ES256).expect("a public key");
    public.common.key_id = Some(KEY_ID.to_owned());
    let set = JwkSet { keys: vec![public] };
    let json = serde_json::to_vec(&set).expect("JSON");
    Arc::new(KeySet::parse(&json).expect("a set of keys"))
});

/// Signs claims, whatever their content. `None` if they cannot be encoded.
pub fn sign(claims: &Value) -> Option<String> {
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some(KEY_ID.to_owned());
    encode(&header, claims, &KEY).ok()
}

/// The authentication of a controller that knows the key.
#[must_use]
pub fn authentication() -> Authentication {
    let config = TokenConfig {
        issuer: ISSUER.to_owned(),
        audience: AUDIENCE.to_owned(),
        cluster: String::new(),
        service_accounts: Vec::new(),
        role: TokenRole::Node,
    };
    let (_, keys) = watch::channel(Arc::clone(&KEYS));
    let verifier = TokenVerifier::new(config, keys, Arc::new(Notify::new()));
    Authentication::Required(Some(Arc::new(verifier)))
}
