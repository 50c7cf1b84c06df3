// SPDX-License-Identifier: Apache-2.0

//! Checks of a run's flags, and with `--check-config` also of its files, without a port, the network or a task.

use std::sync::Arc;

use portolan_source::{file, kubernetes};

use crate::args::{Args, Source};
use crate::clusters::ClustersArgs;
use crate::edges::EdgeArgs;

/// The problems of the flags alone: combinations that clap cannot refuse. Reads no file.
pub(crate) fn flags(args: &Args) -> Vec<String> {
    let mut checks = vec![
        args.validate_identity(),
        args.review.validate(args.source),
        args.dns.validate(args.source),
        args.debug.validate(),
        args.otlp.validate().map_err(Into::into),
        EdgeArgs::validate(args),
        ClustersArgs::validate(args),
    ];
    match args.source {
        Source::Controller => checks.push(args.upstream.validate()),
        Source::Etcd => checks.push(args.etcd.validate()),
        Source::Kubernetes | Source::File | Source::Clusters => {}
    }
    let errors = checks.into_iter().filter_map(Result::err);
    errors.map(|error| format!("{error:#}")).collect()
}

/// All that a run with these flags would refuse before its first connection. Blocks to read files.
pub(crate) async fn problems(args: &Args) -> Vec<String> {
    let mut found = flags(args);
    let mut note = |result: anyhow::Result<()>| {
        found.extend(result.err().map(|error| format!("{error:#}")));
    };
    note(args.debug.token().map(drop));
    note(args.otlp.check_files().map_err(Into::into));
    // Files are read with good flags alone.
    if args.source == Source::Controller && args.upstream.validate().is_ok() {
        let opened = args.upstream.identity().open("upstream_tls");
        note(opened.map(drop).map_err(Into::into));
    }
    if args.source == Source::Etcd && args.etcd.validate().is_ok() {
        note(args.etcd.access().check_files());
    }
    if args.validate_identity().is_ok() {
        args.identity.check_files().into_iter().for_each(&mut note);
        note(args.check_authorities());
    }
    note(args.dns.check_files());
    if args.kubeconfig.is_some() || args.context.is_some() {
        let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
        let check = kubernetes::check_kubeconfig(kubeconfig, context).await;
        note(check.map_err(Into::into));
    }
    if EdgeArgs::validate(args).is_ok() {
        note(args.edge.check_files());
    }
    if args.source == Source::Clusters {
        found.extend(args.clusters.check_files());
    }
    if args.source == Source::File {
        let cluster: Arc<str> = args.cluster.as_str().into();
        let report = file::read(&args.file, &cluster);
        found.extend(report.problems.iter().map(ToString::to_string));
    }
    found
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    async fn check(args: &[&str]) -> Vec<String> {
        let args = [&["portolan-controller", "--check-config"], args].concat();
        let run = Cli::try_parse_from(args).unwrap().run;
        assert!(run.check_config);
        problems(&run).await
    }

    #[tokio::test]
    async fn good_flags_and_files_have_no_problem() {
        assert!(check(&["--plaintext"]).await.is_empty());
        // As a chart renders it, outside of a pod.
        let managed = [
            "--tls-self-managed=a/b",
            "--publish=a/c",
            "--publish-service=a/d",
            "--token-issuer=auto",
            "--token-service-account=a/e",
        ];
        assert!(check(&managed).await.is_empty());
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let object = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\n";
        std::fs::write(path("a.yaml"), object).unwrap();
        let file = format!("--file={}", path("a.yaml"));
        assert!(
            check(&["--plaintext", "--source=file", &file])
                .await
                .is_empty()
        );
    }

    /// They end a run with another exit code than what happens later.
    #[test]
    fn flags_that_cannot_be_used_are_found_before_a_run() {
        let check = |args: &[&str]| {
            let args = [&["portolan-controller"], args].concat();
            flags(&Cli::try_parse_from(args).unwrap().run)
        };
        let good = ["--plaintext"];
        assert_eq!(check(&good), Vec::<String>::new());
        for (bad, part) in [
            ("--dns-bind-address=[::1]:53", "need --dns-zone"),
            ("--dns-zone=.", "--dns-zone"),
            ("--debug-listen=x", "--debug-listen \"x\""),
            ("--otlp-endpoint=https://a:1", "needs --otlp-ca"),
            ("--state-dir=/a", "--state-dir is for"),
            ("--source=etcd", "--etcd-endpoint"),
            ("--policy-kubernetes", "--policy-kubernetes is for"),
            (
                "--source=clusters",
                "needs --policy-file or --policy-kubernetes",
            ),
        ] {
            let found = check(&[good[0], bad]);
            assert_eq!(found.len(), 1, "{bad}: {found:?}");
            assert!(found[0].contains(part), "{bad}: {found:?}");
        }
        // The keys of the issuer are those of an API server, or in a file.
        let tokens = [
            "--tls-dir=/a",
            "--token-issuer=https://a",
            "--token-service-account=a/b",
        ];
        assert_eq!(check(&tokens), Vec::<String>::new());
        let of_files = [&tokens[..], &["--source=file", "--file=/a"]].concat();
        let found = check(&of_files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("needs --token-jwks-file"), "{found:?}");
        let with_keys = [&of_files[..], &["--token-jwks-file=/a"]].concat();
        assert_eq!(check(&with_keys), Vec::<String>::new());
        // A missing file is none of them.
        let token = "--debug-token-file=/nowhere/at/all";
        assert_eq!(check(&[good[0], token]), Vec::<String>::new());
    }

    #[tokio::test]
    async fn every_problem_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("a.yaml"), "kind: [").unwrap();
        std::fs::write(path("jwks.json"), "{}").unwrap();
        let found = check(&[
            &format!("--tls-dir={}", path("tls")),
            &format!("--kubeconfig={}", path("config")),
            &format!("--token-jwks-file={}", path("jwks.json")),
            "--token-issuer=https://a",
            "--token-service-account=a/b",
            "--source=file",
            &format!("--file={}", path("a.yaml")),
            "--otlp-endpoint=https://a:1",
            &format!("--otlp-ca={}", path("collector.crt")),
        ])
        .await;
        for part in [
            "tls.crt",
            "jwks.json",
            "a.yaml:1",
            "kubeconfig",
            "collector.crt",
        ] {
            let one = found.iter().filter(|line| line.contains(part)).count();
            assert_eq!(one, 1, "{part}: {found:?}");
        }
        assert_eq!(found.len(), 5, "{found:?}");
        // Files that are not there yet are waited for.
        std::fs::create_dir(path("centre")).unwrap();
        for file in ["ca.crt", "tls.crt", "tls.key"] {
            std::fs::write(path(&format!("centre/{file}")), "no certificate").unwrap();
        }
        let edge = [
            "--plaintext",
            "--cluster=eu",
            "--federation-upstream=a:1",
            &format!("--federation-tls-dir={}", path("centre")),
        ];
        let found = check(&edge).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("centre/"), "{found:?}");
        let unnamed = check(&[edge[0], edge[2], "--federation-plaintext"]).await;
        assert!(unnamed[0].contains("--cluster"), "{unnamed:?}");
        let none = check(&[]).await;
        assert!(none[0].contains("no server identity"), "{none:?}");
    }
}
