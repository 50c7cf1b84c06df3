// SPDX-License-Identifier: Apache-2.0

//! The policy at a real API server: definitions, objects of the documentation, and a controller that follows them with
//! the documented permissions.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::print_stderr, reason = "logs of what failed")]

#[path = "../policy_files/cases.rs"]
mod cases;
mod centre;

use std::fs;
use std::process::Command;
use std::time::Duration;

use portolan_e2e::programs::program;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use portolan_policy::Kind;
use serde_json::Value;

use cases::{CLUSTERS, SELECTORS, THRESHOLDS, TIERS};
use centre::Centre;

/// Long enough for a loaded machine; only a failure ever waits this long.
const PATIENT: Duration = Duration::from_secs(90);
/// The user whose permissions are those of the documentation.
const USER: &str = "portolan";
const PAGES: [&str; 3] = [
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/clusters.md"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/identity.md"),
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policy_files/good.yaml"),
];

#[test]
fn an_api_server_takes_the_policy_and_a_controller_follows_it() {
    let name = "an_api_server_takes_the_policy_and_a_controller_follows_it";
    let dir = tempfile::tempdir().unwrap();
    let Some(servers) = Servers::start_for_workloads_or_skip(name, dir.path(), &[USER]) else {
        return;
    };
    definitions_are_accepted(&servers);
    objects_of_the_documentation_are_accepted(&servers);
    broken_objects_are_refused(&servers);
    an_id_never_changes(&servers);
    let role = blocks(PAGES[0]).find(|block| block.contains("name: portolan-centre"));
    let role = role.expect("a ClusterRole portolan-centre in docs/clusters.md");
    apply(&servers, &[], &role).unwrap();
    let user = format!("--user={USER}");
    let bind = [
        "create",
        "clusterrolebinding",
        USER,
        "--clusterrole=portolan-centre",
        &user,
    ];
    servers.kubectl(&bind).unwrap();
    centre::follows(&servers, Centre::start(dir.path(), USER));
    assert_eq!(servers.refused_requests().unwrap(), [""; 0]);
}

fn apply(servers: &Servers, flags: &[&str], objects: &str) -> Result<String, String> {
    let args = [
        &["apply", "--server-side", "--validate=strict", "-f", "-"],
        flags,
    ]
    .concat();
    let applied = servers.kubectl_with_input(&args, objects);
    applied.map_err(|error| error.to_string())
}

/// An object of the API server.
fn get(servers: &Servers, kind: &str, name: &str) -> Value {
    let text = servers.kubectl(&["get", kind, name, "-o", "json"]).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn definitions_are_accepted(servers: &Servers) {
    let printed = Command::new(program("portolan-controller").unwrap())
        .arg("crds")
        .output()
        .unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let definitions = String::from_utf8(printed.stdout).unwrap();
    apply(servers, &[], &definitions).unwrap();
    for kind in Kind::ALL {
        let name = format!("{}.portolan.dev", kind.plural());
        let conditions = wait_for("a definition", PATIENT, || {
            let found = get(servers, "customresourcedefinition", &name);
            let conditions = found["status"]["conditions"].as_array()?.clone();
            let is = |kind: &str| {
                conditions
                    .iter()
                    .any(|one| one["type"] == kind && one["status"] == "True")
            };
            is("Established").then_some(conditions)
        });
        let conditions = conditions.unwrap();
        let is_structural = conditions
            .iter()
            .all(|one| one["type"] != "NonStructuralSchema");
        assert!(is_structural, "{kind}: {conditions:#?}");
        // Discovery follows each definition.
        wait_for("the kind", PATIENT, || {
            servers.kubectl(&["get", &name]).ok()
        })
        .unwrap();
    }
}

/// The texts of blocks of YAML on a page; of a file of objects the file.
fn blocks(path: &str) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(path).unwrap();
    let is_page = path.ends_with(".md");
    let parts: Vec<String> = match is_page {
        true => text
            .split("```")
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect(),
        false => vec![text],
    };
    parts.into_iter().map(|block| {
        let after = block
            .split_once("<<'EOT'\n")
            .map(|(_, after)| after.to_owned());
        let here = after.and_then(|after| Some(after.split_once("\nEOT")?.0.to_owned()));
        let plain = block.strip_prefix("yaml\n").unwrap_or(&block).to_owned();
        here.unwrap_or(plain)
    })
}

fn objects_of_the_documentation_are_accepted(servers: &Servers) {
    let mut count = 0;
    for page in PAGES {
        for block in blocks(page) {
            for document in block.split("---\n") {
                let is_ours = document.starts_with("apiVersion: portolan.dev/v1alpha1\n");
                let is_one = document.lines().any(|line| line.starts_with("spec:"));
                if !is_ours || !is_one {
                    continue;
                }
                // YAML of Kubernetes takes the word for a truth value.
                let document = document.replace("endpointSlices: Off", "endpointSlices: \"Off\"");
                let accepted = apply(servers, &["--dry-run=server"], &document);
                accepted.unwrap_or_else(|error| panic!("{page}: {error}\n{document}"));
                count += 1;
            }
        }
    }
    assert!(count >= 10, "{count} objects in the documentation");
}

fn broken_objects_are_refused(servers: &Servers) {
    for (kind, spec, _) in [SELECTORS, TIERS, THRESHOLDS, CLUSTERS].concat() {
        let object = format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
        );
        let refused = apply(servers, &["--dry-run=server"], &object);
        assert!(refused.is_err(), "{kind} {spec}");
    }
}

fn an_id_never_changes(servers: &Servers) {
    let object = |name: &str, id: &str| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\n\
             spec: {{{id}access: {{edge: {{}}}}, network: {{podCIDRs: [10.9.0.0/16]}}}}\n"
        )
    };
    apply(servers, &[], &object("ids", "")).unwrap();
    apply(servers, &[], &object("ids", "id: ids, ")).unwrap();
    let refused = apply(servers, &[], &object("ids", "id: other, ")).unwrap_err();
    assert!(refused.contains("never changes"), "{refused}");
    let refused = apply(servers, &[], &object("a.b", "")).unwrap_err();
    assert!(refused.contains("metadata.name"), "{refused}");
    servers
        .kubectl(&["delete", "clusters.portolan.dev", "ids"])
        .unwrap();
}
