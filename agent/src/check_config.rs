// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent --check-config`: checks flags and files, without the kernel and the network.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::ObjectChange;
use portolan_source::file;
use portolan_subscription::read_controllers;

use crate::app::endpoints;
use crate::args::{RunArgs, Source};

/// All errors of flags and files. Files that a run waits for may be missing.
#[must_use]
pub fn check_config(args: &RunArgs) -> Vec<String> {
    let mut errors = flags(args);
    match args.source {
        Source::Controller => errors.extend(files_of_controllers(args)),
        Source::File => errors.extend(objects(args)),
    }
    errors.into_iter().collect()
}

/// Errors of flags. Several checks may find the same one.
fn flags(args: &RunArgs) -> BTreeSet<String> {
    let checks = [
        args.validate(),
        args.kernel_config().map(drop),
        args.kernel.plan_config().map(drop),
        args.node_port_addresses().map(drop),
        args.admin_listen().map(drop),
        args.healthz_listen().map(drop),
        args.node_name().map(drop),
        args.debug.token().map(drop),
        args.dns.validate(args.source == Source::Controller),
        endpoints(&args.controller).map(drop),
    ];
    let errors = checks.into_iter().filter_map(Result::err);
    errors.map(|error| format!("{error:#}")).collect()
}

fn files_of_controllers(args: &RunArgs) -> Vec<String> {
    let mut errors = Vec::new();
    let identity = args.identity.identity();
    if identity.validate().is_ok()
        && let Err(error) = identity.open("tls")
    {
        errors.push(error.to_string());
    }
    match &args.controller_file {
        Some(path) if path.exists() => {
            errors.extend(read_controllers(path).err().map(|error| error.to_string()));
        }
        Some(path) => tracing::warn!("{}: missing: a run waits for it", path.display()),
        None => {}
    }
    errors
}

/// Errors of files of objects.
fn objects(args: &RunArgs) -> Vec<String> {
    let report = file::read(&args.file, &Arc::from(args.cluster.as_str()));
    problems(&report)
}

/// Problems of files and of the objects in them.
pub(crate) fn problems(report: &file::Report) -> Vec<String> {
    let of_objects = report.changes.iter().flat_map(|change| match change {
        ObjectChange::Put { problems, .. } | ObjectChange::Refused { problems, .. } => {
            problems.as_slice()
        }
        _ => &[],
    });
    let of_objects = of_objects.map(ToString::to_string);
    let of_files = report.problems.iter().map(ToString::to_string);
    of_files.chain(of_objects).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    fn errors(args: &[String]) -> Vec<String> {
        let program = std::iter::once("portolan-agent".to_owned());
        let all = program.chain(args.iter().cloned());
        check_config(&Cli::try_parse_from(all).unwrap().run)
    }

    #[test]
    fn each_error_of_a_flag_is_reported() {
        let flags = [
            "--node-name=a",
            "--admin-listen=x",
            "--healthz-listen=y",
            "--controller=z",
            "--detect-local-mode=BridgeInterface",
        ];
        let found = errors(&flags.map(str::to_owned)).join("\n");
        for part in [
            "--admin-listen \"x\"",
            "--healthz-listen \"y\"",
            "\"z\": expected host:port",
            "needs --pod-bridge-interface",
            "no security configured",
        ] {
            assert!(found.contains(part), "{part}\n{found}");
        }
        assert_eq!(
            found.matches("--pod-bridge-interface").count(),
            1,
            "{found}"
        );
    }

    #[test]
    fn files_are_checked_if_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let flags = [
            "--node-name=a".to_owned(),
            format!("--controller-file={}", path("controllers")),
            format!("--tls-ca={}", path("ca.crt")),
            format!("--token-file={}", path("token")),
        ];
        assert_eq!(errors(&flags), Vec::<String>::new());
        for (file, content, part) in [
            ("controllers", "a:1\nb\n", "controllers: line 2: \"b\""),
            ("ca.crt", "x", "ca.crt: no certificate in PEM"),
        ] {
            std::fs::write(dir.path().join(file), content).unwrap();
            let found = errors(&flags).join("\n");
            assert!(found.contains(part), "{found}");
        }
    }

    #[test]
    fn files_of_objects_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let flags = [
            "--node-name=a".to_owned(),
            "--source=file".to_owned(),
            format!("--file={}", dir.path().display()),
        ];
        assert_eq!(errors(&flags), Vec::<String>::new());
        std::fs::write(dir.path().join("x.yaml"), "kind: [").unwrap();
        let found = errors(&flags).join("\n");
        assert!(found.contains("x.yaml:"), "{found}");
        let missing = "--file=/nowhere/at/all".to_owned();
        let found = errors(&[&flags[..2], &[missing]].concat()).join("\n");
        assert!(found.contains("/nowhere/at/all"), "{found}");
    }
}
