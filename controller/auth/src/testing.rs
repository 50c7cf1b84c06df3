// SPDX-License-Identifier: Apache-2.0

//! Keys and tokens made for tests.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_RSA_SHA256, RsaKeySize};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{Issuer, KeySet, KeyWanted, TokenConfig, TokenRole, TokenVerifier};

pub const ISSUER: &str = "https://kubernetes.default.svc";

pub struct Signer {
    pub key: EncodingKey,
    pub algorithm: Algorithm,
    pub public: Jwk,
}

impl Signer {
    fn new(key: EncodingKey, algorithm: Algorithm, id: &str) -> Self {
        let mut public = Jwk::from_encoding_key(&key, algorithm).unwrap();
        public.common.key_id = Some(id.to_owned());
        Self {
            key,
            algorithm,
            public,
        }
    }

    pub fn elliptic(id: &str) -> Self {
        let key = KeyPair::generate().unwrap().serialize_der();
        Self::new(EncodingKey::from_ec_der(&key), Algorithm::ES256, id)
    }

    pub fn rsa(id: &str) -> Self {
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        // PKCS#8 has 26 bytes around the PKCS#1 key of 2048 bits.
        let key = EncodingKey::from_rsa_der(&key.serialize_der()[26..]);
        Self::new(key, Algorithm::RS256, id)
    }

    fn id(&self) -> String {
        self.public.common.key_id.clone().unwrap()
    }

    pub fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id());
        encode(&header, claims, &self.key).unwrap()
    }
}

pub fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs()
}

/// Claims of a token as Kubernetes 1.32 issues it, without those that are ignored.
pub fn claims() -> Value {
    let now = unix_now();
    json!({
        "aud": ["portolan-controller"],
        "exp": now + 3600,
        "iat": now,
        "iss": ISSUER,
        "nbf": now,
        "sub": "system:serviceaccount:kube-system:portolan-agent",
        "kubernetes.io": {
            "namespace": "kube-system",
            "node": {"name": "a", "uid": "1"},
            "pod": {"name": "portolan-agent-x", "uid": "2"},
            "serviceaccount": {"name": "portolan-agent", "uid": "3"},
        },
    })
}

/// Claims of a token of an edge controller, with the pod as the edge's name.
pub fn edge_claims(issuer: &str, pod: &str) -> Value {
    let mut claims = claims();
    claims["iss"] = json!(issuer);
    claims["kubernetes.io"] = json!({
        "namespace": "portolan",
        "pod": {"name": pod, "uid": "2"},
        "serviceaccount": {"name": "edge", "uid": "3"},
    });
    claims
}

/// The text of a key set of these signers.
pub fn key_set(signers: &[&Signer]) -> String {
    let keys = signers.iter().map(|signer| signer.public.clone());
    let set = JwkSet {
        keys: keys.collect(),
    };
    serde_json::to_string(&set).unwrap()
}

/// The keys of these signers.
pub fn keys(signers: &[&Signer]) -> watch::Receiver<Arc<KeySet>> {
    let keys = KeySet::parse(key_set(signers).as_bytes()).unwrap();
    watch::channel(Arc::new(keys)).1
}

/// The tokens of a cluster's agents that are accepted.
pub fn config(cluster: &str) -> TokenConfig {
    TokenConfig {
        issuer: ISSUER.to_owned(),
        audience: "portolan-controller".to_owned(),
        cluster: cluster.to_owned(),
        service_accounts: vec![("kube-system".to_owned(), "portolan-agent".to_owned())],
        role: TokenRole::Node,
    }
}

/// The issuer of the tokens of a cluster's edge controllers.
pub fn edge_issuer(cluster: &str, issuer: &str, signers: &[&Signer]) -> Issuer {
    let config = TokenConfig {
        issuer: issuer.to_owned(),
        service_accounts: vec![("portolan".to_owned(), "edge".to_owned())],
        role: TokenRole::Edge,
        ..config(cluster)
    };
    Issuer::new(config, keys(signers), KeyWanted::default())
}

/// A verifier of a cluster's tokens that accepts the keys of these signers.
pub fn verifier(cluster: &str, signers: &[&Signer]) -> TokenVerifier {
    TokenVerifier::new(config(cluster), keys(signers), KeyWanted::default())
}
