// SPDX-License-Identifier: Apache-2.0

//! Settings that files may have and this version does not program.

use std::net::IpAddr;

use crate::document::Announce;
use crate::records::of_family;
use crate::{DeclaredCheck, LoadBalancer, Packets};

/// Returns the settings in the files of a host that this version reads but cannot program: each field, with a message
/// that has the reason or the remedy.
#[must_use]
pub fn unsupported(balancer: &LoadBalancer) -> Vec<(String, String)> {
    let mut found = unsupported_anywhere(balancer);
    if !balancer.node_selector.is_empty() {
        let message =
            "not supported here: give each host its own files, or serve them all by a controller";
        found.push(("spec.nodeSelector".to_owned(), message.to_owned()));
    }
    found
}

fn unsupported_anywhere(balancer: &LoadBalancer) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut add =
        |field: String, why: &str| found.push((field, format!("not supported yet: {why}")));
    for (index, frontend) in balancer.frontends.iter().enumerate() {
        let field = |name: &str| format!("spec.frontends[{index}].{name}");
        match &frontend.packets {
            Packets::Ranges { .. } => {
                if !frontend.source_ranges.is_empty() {
                    add(field("sourceRanges"), "ports have none");
                }
                if balancer.source_nat {
                    add(field("ports"), "sourceNat needs a frontend for each port");
                }
            }
            Packets::Mark { .. } if balancer.source_nat => {
                add(field("mark"), "sourceNat needs addresses and a port");
            }
            Packets::Mark { .. } => {}
            Packets::Port { addresses, .. } => {
                let ranges = &frontend.source_ranges;
                let is_open = |ip: &IpAddr| !ranges.is_empty() && of_family(ranges, *ip).is_empty();
                if addresses.iter().any(is_open) {
                    let why = "a frontend of both families needs ranges of both";
                    add(field("sourceRanges"), why);
                }
            }
        }
    }
    if balancer.announce != Announce::default() {
        add("spec.announce".to_owned(), "leave it out");
    }
    found
}

/// Like [`unsupported`] in the files of a controller and in the etcd of a fleet: hosts run programs and open files from
/// their own files alone.
#[must_use]
pub fn unsupported_in_fleet(balancer: &LoadBalancer) -> Vec<(String, String)> {
    let mut found = unsupported_anywhere(balancer);
    let hooks = [
        ("onQuorum", &balancer.hooks.on_quorum),
        ("onBackend", &balancer.hooks.on_backend),
    ];
    let hooks = hooks.into_iter().filter(|(_, command)| !command.is_empty());
    found.extend(hooks.map(|(name, _)| {
        let why = "not supported here: hosts run programs from their own files alone";
        (format!("spec.hooks.{name}"), why.to_owned())
    }));
    let why = "not supported here: hosts open files of checks from their own files alone";
    let paths = paths_of_checks(balancer);
    found.extend(paths.into_iter().map(|field| (field, why.to_owned())));
    found
}

/// The fields of checks that name files for TLS.
fn paths_of_checks(balancer: &LoadBalancer) -> Vec<String> {
    let mut fields = Vec::new();
    let mut add = |within: &str, checks: &[DeclaredCheck]| {
        for (index, check) in checks.iter().enumerate() {
            let names = check.probe.tls_files().into_iter();
            fields.extend(names.map(|name| format!("{within}.checks[{index}].{name}")));
        }
    };
    add("spec", &balancer.checks);
    for (index, backend) in balancer.backends.iter().enumerate() {
        let own = backend.checks.as_deref().unwrap_or_default();
        add(&format!("spec.backends[{index}]"), own);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Already, File, parse};

    fn parsed(text: &str) -> LoadBalancer {
        let file = File {
            name: "lb.yaml",
            text,
        };
        let generation = parse(&[file], &Already::default()).unwrap();
        let only = generation.load_balancers.into_iter().next();
        std::sync::Arc::unwrap_or_clone(only.unwrap())
    }

    #[test]
    fn what_cannot_be_programmed_is_named() {
        let text = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: ftp}
spec:
  frontends:
  - {addresses: [192.0.2.21], ports: "21,20000-20999", sourceRanges: [10.0.0.0/8]}
  - {addresses: [192.0.2.22, "2001:db8::22"], port: 80, sourceRanges: [10.0.0.0/8]}
  sourceNat: true
  persistence: {timeout: 10m}
  backends: [{address: 10.1.0.11, checks: [{via: Service, tcp: {}}]}]
  hooks: {onQuorum: [/bin/true]}
  nodeSelector: {a: b}
"#;
        let fields: Vec<_> = unsupported(&parsed(text))
            .into_iter()
            .map(|(field, _)| field)
            .collect();
        let expected = [
            "spec.frontends[0].sourceRanges",
            "spec.frontends[0].ports",
            "spec.frontends[1].sourceRanges",
            "spec.nodeSelector",
        ];
        assert_eq!(fields, expected);
        let fields = |found: Vec<(String, String)>| -> Vec<String> {
            found.into_iter().map(|(field, _)| field).collect()
        };
        let mut expected = expected[..3].to_vec();
        expected.push("spec.hooks.onQuorum");
        assert_eq!(fields(unsupported_in_fleet(&parsed(text))), expected);
    }

    #[test]
    fn files_of_checks_are_those_of_a_host() {
        let text = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: web}
spec:
  frontends: [{addresses: [192.0.2.21], port: 443}]
  checks:
  - tcp: {}
  - http: {tls: {verify: Ca, ca: /etc/ca.pem}}
  backends:
  - {address: 10.1.0.11}
  - address: 10.1.0.12
    checks: [{tls: {verify: System, certificate: /etc/tls.crt, key: /etc/tls.key}}]
"#;
        let balancer = parsed(text);
        assert!(unsupported(&balancer).is_empty());
        let found = unsupported_in_fleet(&balancer).into_iter();
        let fields: Vec<_> = found.map(|(field, _)| field).collect();
        let expected = [
            "spec.checks[1].http.tls.ca",
            "spec.backends[1].checks[0].tls.certificate",
            "spec.backends[1].checks[0].tls.key",
        ];
        assert_eq!(fields, expected);
    }
}
