// SPDX-License-Identifier: Apache-2.0

use super::*;

fn args() -> IdentityArgs {
    IdentityArgs {
        tls_cert: Some("cert".into()),
        tls_key: Some("key".into()),
        ..IdentityArgs::default()
    }
}

#[test]
fn agents_are_authenticated_by_certificate_or_token() {
    assert!(args().validate(false, false).is_err());
    let by_certificate = IdentityArgs {
        tls_client_ca: Some("ca".into()),
        ..args()
    };
    assert!(by_certificate.validate(false, false).is_ok());
    let by_token = IdentityArgs {
        token_issuer: Some("https://issuer".to_owned()),
        token_service_account: vec!["kube-system/portolan-agent".to_owned()],
        ..args()
    };
    assert!(by_token.validate(false, false).is_ok());
    assert_eq!(by_token.client_ca(), None);
    let of_any_pod = IdentityArgs {
        token_issuer: by_token.token_issuer.clone(),
        ..args()
    };
    let error = of_any_pod.validate(false, false).unwrap_err().to_string();
    assert!(error.contains("--token-service-account"), "{error}");
    // An edge's token suffices at the centre, without an authority of clients.
    let of_edges = IdentityArgs {
        cluster_tokens: true,
        ..args()
    };
    assert!(of_edges.validate(false, false).is_ok());
    assert!(of_edges.server_files().unwrap().anonymous);
    let both = IdentityArgs {
        cluster_tokens: true,
        ..by_token.clone()
    };
    let error = both.validate(false, false).unwrap_err().to_string();
    assert!(error.contains("excludes --token-issuer"), "{error}");
    let plaintext = IdentityArgs {
        cluster_tokens: true,
        ..IdentityArgs::default()
    };
    assert!(plaintext.validate(true, false).is_err());
    let no_tls = IdentityArgs {
        tls_cert: None,
        tls_key: None,
        ..by_token
    };
    assert!(no_tls.validate(false, false).is_err() && no_tls.validate(true, false).is_err());
}

#[test]
fn descriptors_are_reserved() {
    for (wanted, descriptors, connected) in [
        (20_000, None, 20_000),
        (20_000, Some(1 << 20), 20_000),
        (20_000, Some(20_000), 18_976),
        (20_000, Some(1_024), 512),
        (100, Some(1_024), 100),
        (100, Some(1), 1),
    ] {
        assert_eq!(
            connections(wanted, descriptors),
            connected,
            "{descriptors:?}"
        );
    }
}

#[test]
fn accounts_have_a_namespace() {
    for (account, good) in [
        ("kube-system/portolan", true),
        ("portolan", false),
        ("/x", false),
    ] {
        let args = IdentityArgs {
            token_issuer: Some("https://issuer".to_owned()),
            token_service_account: vec![account.to_owned()],
            ..args()
        };
        assert_eq!(args.validate(false, false).is_ok(), good, "{account}");
    }
}

#[test]
fn the_issuer_may_be_that_of_the_own_token() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let issuer = |flag| resolve_issuer(flag, &path).map_err(|error| format!("{error:#}"));
    assert_eq!(issuer("https://issuer"), Ok("https://issuer".to_owned()));
    let error = issuer("auto").unwrap_err();
    assert!(
        error.contains("ServiceAccount") && error.contains("token: No such"),
        "{error}"
    );
    std::fs::write(&path, "not a token").unwrap();
    let error = issuer("auto").unwrap_err();
    assert!(error.contains("no JSON Web Token"), "{error}");
    // {"iss":"https://own"}
    std::fs::write(&path, "e30.eyJpc3MiOiJodHRwczovL293biJ9.c2ln").unwrap();
    assert_eq!(issuer("auto"), Ok("https://own".to_owned()));
}

#[test]
fn an_unusable_key_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("jwks.json");
    std::fs::write(&path, "{}").unwrap();
    let error = format!("{:#}", key_file(&path).unwrap_err());
    assert!(error.contains("jwks.json"), "{error}");
}
