// SPDX-License-Identifier: Apache-2.0

//! Answers of `config check` and `config explain`, as texts and exit codes.

use crate::explain::explain;
use crate::generation::{File, parse};
use crate::problem::{counted, not_applied};
use crate::rules::Already;

/// The answer of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Lines for the user, each with its end.
    pub text: String,
    /// The exit code.
    pub code: u8,
}

/// `config check`: all problems and the last line, with code 1; or warnings and the number of
/// objects, with code 0. `in_force` is as for [`not_applied`].
#[must_use]
pub fn check(files: &[File<'_>], already: &Already, in_force: Option<&str>) -> Answer {
    match parse(files, already) {
        Ok(generation) => {
            let mut lines: Vec<String> = generation
                .warnings
                .iter()
                .map(|warning| format!("{warning} (warning)"))
                .collect();
            lines.push(format!(
                "{}, {}",
                counted(generation.load_balancers.len(), "load balancer"),
                counted(generation.directors.len(), "director")
            ));
            Answer {
                text: lines.join("\n") + "\n",
                code: 0,
            }
        }
        Err(problems) => {
            let mut names: Vec<&str> = problems
                .iter()
                .map(|problem| problem.file.as_str())
                .collect();
            names.sort_unstable();
            names.dedup();
            let mut lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
            lines.push(not_applied(&names.join(", "), problems.len(), in_force));
            Answer {
                text: lines.join("\n") + "\n",
                code: 1,
            }
        }
    }
}

/// `config explain`: the commands for the real servers of all objects or of one, by
/// `NAMESPACE/NAME`. Code 1 if there is no such object or the files have problems.
#[must_use]
pub fn explain_files(files: &[File<'_>], name: Option<&str>) -> Answer {
    let Ok(generation) = parse(files, &Already::default()) else {
        return check(files, &Already::default(), None);
    };
    let wanted = generation
        .load_balancers
        .iter()
        .filter(|object| name.is_none_or(|name| object.name.to_string() == name));
    let text: String = wanted.map(|object| explain(object)).collect();
    match name {
        Some(name) if text.is_empty() => Answer {
            text: format!("no load balancer {name} with backends\n"),
            code: 1,
        },
        _ => Answer { text, code: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(spec: &str) -> String {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\n\
             spec:\n  frontends: [{{addresses: [192.0.2.10], port: 80}}]\n{spec}"
        )
    }

    fn checked(spec: &str) -> Answer {
        let text = file(spec);
        let file = File {
            name: "lb.yaml",
            text: &text,
        };
        check(&[file], &Already::default(), Some("2026-01-02T03:04:05Z"))
    }

    #[test]
    fn a_check_prints_problems_or_warnings() {
        let warned = checked("  health: {quorum: 2}\n");
        assert_eq!(
            warned.text,
            "lb.yaml:6:20: spec.health.quorum: needs weight 2: all backends together have 0 \
             (warning)\n1 load balancer, 0 directors\n"
        );
        assert_eq!(warned.code, 0);
        let refused = checked("  schedular: rr\n");
        assert_eq!(
            refused.text,
            "lb.yaml:6:3: spec.schedular: unknown field: did you mean \"scheduler\"?\n\
             lb.yaml: not applied: 1 error; the configuration of 2026-01-02T03:04:05Z stays in \
             force\n"
        );
        assert_eq!(refused.code, 1);
    }

    #[test]
    fn an_object_is_explained_by_its_name() {
        let text = file("  backends: [{address: 10.0.0.1}]\n");
        let files = [File {
            name: "lb.yaml",
            text: &text,
        }];
        assert!(
            explain_files(&files, Some("default/web"))
                .text
                .contains("ip -4 route")
        );
        let missing = explain_files(&files, Some("default/dns"));
        assert_eq!(missing.text, "no load balancer default/dns with backends\n");
        assert_eq!(missing.code, 1);
    }
}
