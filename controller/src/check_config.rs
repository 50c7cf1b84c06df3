// SPDX-License-Identifier: Apache-2.0

//! `--check-config`: the flags and files of a run, without a port, the network or a task.

use std::sync::Arc;

use portolan_source::{file, kubernetes};

use crate::args::{Args, Source};
use crate::clusters::ClustersArgs;
use crate::edges::EdgeArgs;

/// All that a run with these flags would refuse before its first connection. Blocks to read files.
pub(crate) async fn problems(args: &Args) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |result: anyhow::Result<()>| {
        found.extend(result.err().map(|error| format!("{error:#}")));
    };
    let identity = args.validate_identity();
    let has_identity = identity.is_ok();
    note(identity);
    note(args.review.validate(args.source));
    note(args.dns.validate(args.source));
    note(args.debug.token().map(drop));
    if args.source == Source::Controller {
        let open = || args.upstream.identity().open("upstream_tls").map(drop);
        note(
            args.upstream
                .validate()
                .and_then(|()| open().map_err(Into::into)),
        );
    }
    if args.source == Source::Etcd {
        let access = args.etcd.access();
        note(args.etcd.validate().and_then(|()| access.check_files()));
    }
    if has_identity {
        args.identity.check_files().into_iter().for_each(&mut note);
        note(args.check_authorities());
    }
    note(args.dns.check_files());
    if args.kubeconfig.is_some() || args.context.is_some() {
        let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
        let check = kubernetes::check_kubeconfig(kubeconfig, context).await;
        note(check.map_err(Into::into));
    }
    note(EdgeArgs::validate(args).and_then(|()| args.edge.check_files()));
    note(ClustersArgs::validate(args));
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
        ])
        .await;
        for part in ["tls.crt", "jwks.json", "a.yaml:1", "kubeconfig"] {
            let one = found.iter().filter(|line| line.contains(part)).count();
            assert_eq!(one, 1, "{part}: {found:?}");
        }
        assert_eq!(found.len(), 4, "{found:?}");
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
