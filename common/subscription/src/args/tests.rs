// SPDX-License-Identifier: Apache-2.0

use clap::Parser;

use super::*;

crate::identity_args! {
    struct AgentArgs {
        prefix: "",
        env: "TEST_",
        peer: "the controller",
        uri: "portolan://CLUSTER/node/NODE",
        plaintext: "No TLS",
    }
}

crate::identity_args! {
    struct UpstreamArgs {
        prefix: "upstream-",
        env: "TEST_UPSTREAM_",
        peer: "--upstream",
        uri: "portolan://CLUSTER/relay/NAME",
        plaintext: "No TLS",
    }
}

#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    agent: AgentArgs,
    #[arg(long)]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    upstream: UpstreamArgs,
    #[command(flatten)]
    guard: GuardArgs,
}

impl Cli {
    fn agent(&self) -> Identity {
        let token = self.token_file.clone().map_or(Token::Absent, Token::File);
        Identity {
            token,
            ..self.agent.identity()
        }
    }
}

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from([&["x"], args].concat())
}

#[test]
fn both_sides_must_be_identified() {
    for (args, expected) in [
        (&[][..], "set --tls-dir"),
        (&["--plaintext"], ""),
        (&["--tls-dir=/nowhere"], ""),
        (
            &["--tls-dir=/nowhere", "--plaintext"],
            "--plaintext excludes",
        ),
        (
            &["--tls-cert=c", "--tls-key=k"],
            "--tls-cert needs --tls-ca",
        ),
        (&["--tls-ca=a"], "--tls-cert and --tls-key, or --token-file"),
        (&["--tls-ca=a", "--token-file=t"], ""),
        (&["--plaintext", "--token-file=t"], "--token-file"),
        (
            &["--tls-dir=d", "--tls-server-name=a b"],
            "--tls-server-name",
        ),
    ] {
        let valid = parse(args).unwrap().agent().validate();
        match valid {
            Ok(()) => assert_eq!(expected, "", "{args:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(!expected.is_empty() && error.contains(expected), "{error}");
            }
        }
    }
    for args in [["--tls-cert=c"], ["--tls-key=k"], ["--upstream-tls-key=k"]] {
        assert!(parse(&args).is_err(), "{args:?}");
    }
}

#[test]
fn a_prefix_separates_two_groups() {
    let cli = parse(&["--plaintext", "--upstream-tls-ca=a"]).unwrap();
    assert!(cli.agent().validate().is_ok());
    let error = cli.upstream.identity().validate().unwrap_err().to_string();
    assert!(error.contains("--upstream-tls-key"), "{error}");
    assert!(!error.contains("token"), "{error}");
    let with = |cli: &Cli, token| Identity {
        token,
        ..cli.upstream.identity()
    };
    let error = with(&cli, Token::Absent).validate().unwrap_err();
    assert!(error.to_string().contains("--upstream-token-file"));
    let plaintext = parse(&["--upstream-plaintext"]).unwrap();
    let error = with(&plaintext, Token::File("t".into())).validate();
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("--upstream-token-file: "), "{error}");
}

#[test]
fn a_bad_file_is_named_and_a_missing_one_is_awaited() {
    let dir = tempfile::tempdir().unwrap();
    let flag = format!("--tls-dir={}", dir.path().display());
    let identity = parse(&[&flag]).unwrap().agent();
    let (_, files) = identity.open("tls").unwrap();
    assert!(files.unwrap().health().1.is_broken());
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        std::fs::write(dir.path().join(file), "nothing").unwrap();
    }
    let error = identity.open("tls").unwrap_err().to_string();
    assert!(error.contains("ca.crt: no certificate"), "{error}");
}

#[test]
fn a_directory_needs_no_certificate_if_there_is_a_token() {
    let cli = parse(&["--tls-dir=/nowhere", "--token-file=t"]).unwrap();
    assert_eq!(cli.agent().pair(), None);
    let cli = parse(&["--tls-dir=/nowhere"]).unwrap();
    assert!(cli.agent().pair().is_some());
}

#[test]
fn the_guard_has_new_and_old_names() {
    let config = |args: &[&str]| parse(args).unwrap().guard.config();
    assert_eq!(config(&[]), GuardConfig::default());
    let new = config(&[
        "--deletion-guard-percent=30",
        "--deletion-guard-objects=7",
        "--deletion-guard-time=1h",
    ]);
    let expected = GuardConfig {
        percent: 30,
        least: 7,
        time: Some(Duration::from_secs(3600)),
    };
    assert_eq!(new, expected);
    let old = config(&["--hold-deletions-above=100", "--hold-seconds=30"]);
    assert!(old.is_off());
    assert_eq!(old.time, Some(Duration::from_secs(30)));
    assert_eq!(config(&["--hold-seconds=0"]).time, None);
}
