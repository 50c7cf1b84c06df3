// SPDX-License-Identifier: Apache-2.0

//! ServiceAccount tokens, verified offline with keys from a file.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::jwk::{Jwk, JwkSet};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use portolan_agent::subscribe::Staging;
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Code, Status};

use crate::client::{Client, config_of};
use crate::server::Server;

const ISSUER: &str = "https://kubernetes.default.svc";

struct Signer {
    key: EncodingKey,
    public: Jwk,
}

impl Signer {
    fn new() -> Self {
        let pair = KeyPair::generate().unwrap().serialize_der();
        let key = EncodingKey::from_ec_der(&pair);
        let mut public = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        public.common.key_id = Some("1".to_owned());
        Self { key, public }
    }

    fn sign(&self, audience: &str, node: &str) -> String {
        self.sign_for("portolan-agent", audience, node)
    }

    fn sign_for(&self, account: &str, audience: &str, node: &str) -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let claims: Value = json!({
            "aud": [audience], "iss": ISSUER, "exp": since.as_secs() + 3600,
            "kubernetes.io": {
                "namespace": "kube-system",
                "serviceaccount": { "name": account },
                "node": { "name": node },
            },
        });
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some("1".to_owned());
        encode(&header, &claims, &self.key).unwrap()
    }
}

#[tokio::test]
async fn a_token_is_good_for_its_audience_and_its_node_only() {
    let (signer, stranger) = (Signer::new(), Signer::new());
    let dir = TempDir::new().unwrap();
    let keys = dir.path().join("keys.json");
    let set = JwkSet {
        keys: vec![signer.public.clone()],
    };
    fs::write(&keys, serde_json::to_vec(&set).unwrap()).unwrap();
    let keys = format!("--token-jwks-file={}", keys.display());
    let server = Server::with(&[
        &format!("--token-issuer={ISSUER}"),
        "--token-service-account=kube-system/portolan-agent",
        &keys,
    ]);
    let ca = fs::read_to_string(server.certs().join("ca/tls.crt")).unwrap();
    let open = async |token: &str| -> Result<Client, Status> {
        let (config, staging) = (config_of(&ca, None), Staging::new("", "node-1"));
        Client::begin(server.agents, config, "a", Some(token), staging).await
    };

    let ours = "portolan-controller";
    let mut good = open(&signer.sign(ours, "a")).await.unwrap();
    good.until(1).await;
    for (token, code, reason) in [
        (signer.sign("vault", "a"), Code::Unauthenticated, "token"),
        (stranger.sign(ours, "a"), Code::Unauthenticated, "token"),
        (
            signer.sign_for("any-pod", ours, "a"),
            Code::Unauthenticated,
            "token",
        ),
        ("x.y.z".to_owned(), Code::Unauthenticated, "token"),
        (signer.sign(ours, "b"), Code::PermissionDenied, "wrong_node"),
    ] {
        let before = server.refused(reason);
        let refused = open(&token).await.err().expect("no table for it");
        assert_eq!(refused.code(), code, "{refused}");
        assert_eq!(server.refused(reason), before + 1.0);
        assert!(!refused.message().contains(&token));
    }
    let nothing = Client::connect(server.agents, config_of(&ca, None), "a").await;
    assert_eq!(nothing.err().unwrap().code(), Code::Unauthenticated);
    assert_eq!(server.refused("no_credential"), 1.0);
    server.publish(2);
    good.until(2).await;
}
