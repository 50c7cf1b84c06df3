// SPDX-License-Identifier: Apache-2.0

//! `Director` objects.

use std::time::Duration;

use portolan_model::check::{CheckDefaults, Timers};

use super::check::{source, timers};
use super::{Findings, bounded, bounded_seconds};
use crate::director::{
    CheckLimits, DEFAULT_MARKS, Director, Scripts, Sync, Sysctls, Timeouts, Vips,
};
use crate::document::{
    ChecksDocument, DirectorDocument, DirectorSpec, Period, SyncDocument, SysctlValue,
    TimeoutsDocument, VipsDocument,
};
use crate::object::Tags;
use crate::read::Path;

/// The object that a document declares. Worth something only if there are no errors.
pub(crate) fn director(document: &DirectorDocument, findings: &mut Findings) -> Director {
    let spec = &document.spec;
    if document.metadata.namespace.is_some() {
        let path = Path::default().field("metadata").field("namespace");
        findings.error(&path, "a Director is of no namespace: expected none");
    }
    let path = Path::default().field("spec");
    Director {
        name: document.metadata.name.clone(),
        tags: Tags {
            labels: document.metadata.labels.clone(),
            annotations: document.metadata.annotations.clone(),
            resource_version: document.metadata.revision(),
        },
        vips: spec.vips.as_ref().map_or_else(Vips::default, |document| {
            vips(findings, &path.field("vips"), document)
        }),
        sync: spec
            .sync
            .as_ref()
            .map(|document| sync(findings, &path.field("sync"), document)),
        stateless_failover: spec.stateless_failover,
        timeouts: spec
            .timeouts
            .as_ref()
            .map_or_else(Timeouts::default, |document| {
                timeouts(findings, &path.field("timeouts"), document)
            }),
        sysctls: sysctls(findings, &path.field("sysctls"), spec),
        marks: spec.marks.unwrap_or(DEFAULT_MARKS),
        announce_table: announce_table(findings, &path, spec.announce_table),
        checks: spec
            .checks
            .as_ref()
            .map_or_else(CheckLimits::default, |document| {
                checks(findings, &path.field("checks"), document)
            }),
        checks_on_standby: spec.checks_on_standby.unwrap_or(true),
        maintenance_directory: spec.maintenance_directory.clone(),
        scripts: scripts(findings, &path.field("scripts"), spec),
    }
}

fn vips(findings: &mut Findings, path: &Path, document: &VipsDocument) -> Vips {
    let default = Vips::default();
    let announce = document.announce.clone().unwrap_or_default();
    let bounds = (Period::new(Duration::from_millis(1)), Period::seconds(60));
    let path = path.field("announce").field("interval");
    Vips {
        binding: document.binding.unwrap_or_default(),
        interface: document.interface.clone(),
        role: document.role.unwrap_or_default(),
        announcements: announce.count.unwrap_or(default.announcements),
        announcement_interval: announce
            .interval
            .map_or(default.announcement_interval, |interval| {
                bounded(findings, &path, interval, bounds)
            }),
    }
}

fn sync(findings: &mut Findings, path: &Path, document: &SyncDocument) -> Sync {
    let default = Sync::new(document.interface.clone());
    let group = document.group.unwrap_or(default.group);
    if !group.is_multicast() {
        let message = format!("{group}: expected a multicast address");
        findings.error(&path.field("group"), message);
    }
    let ports = document.ports.unwrap_or(1);
    if !ports.is_power_of_two() {
        let message = format!("{ports}: expected a power of 2 up to 64");
        findings.error(&path.field("ports"), message);
    }
    let threshold = document
        .threshold
        .map_or(default.threshold, |[at, each]| (at, each));
    if threshold.1 != 0 && threshold.0 >= threshold.1 {
        let message = format!(
            "[{}, {}]: expected the first below the second, or the second 0",
            threshold.0, threshold.1
        );
        findings.error(&path.field("threshold"), message);
    }
    let bounds = (Period::default(), Period::seconds(86_400));
    let refresh_period = document.refresh_period.unwrap_or_default();
    Sync {
        id: u8::try_from(document.id).unwrap_or_default(),
        group,
        port: document.port.unwrap_or(default.port),
        ttl: document.ttl.unwrap_or(default.ttl),
        max_length: document.max_length.unwrap_or(default.max_length),
        ports: u8::try_from(ports).unwrap_or(1),
        threshold,
        refresh_period: bounded_seconds(
            findings,
            &path.field("refreshPeriod"),
            refresh_period,
            bounds,
        ),
        retries: u8::try_from(document.retries).unwrap_or_default(),
        ..default
    }
}

fn timeouts(findings: &mut Findings, path: &Path, document: &TimeoutsDocument) -> Timeouts {
    let bounds = (Period::seconds(1), Period::seconds(24 * 86_400));
    let mut seconds = |name, period: Option<Period>| {
        period.map(|period| bounded_seconds(findings, &path.field(name), period, bounds))
    };
    Timeouts {
        tcp: seconds("tcp", document.tcp),
        tcp_fin: seconds("tcpFin", document.tcp_fin),
        udp: seconds("udp", document.udp),
    }
}

/// Connections of IPVS in conntrack: a host may want it without rules of ours, for rules of its own.
const CONNTRACK: &str = "net.ipv4.vs.conntrack";

fn sysctls(findings: &mut Findings, path: &Path, spec: &DirectorSpec) -> Sysctls {
    let document = spec.sysctls.clone().unwrap_or_default();
    let taken = taken(spec);
    let values = document.values.into_iter().map(|(name, value)| {
        let value = match value {
            SysctlValue::Number(number) => number.to_string(),
            SysctlValue::Text(text) => text,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let leads_out = name.contains("..") || name.contains("//");
        if let Some((_, owner)) = taken.iter().find(|(taken, _)| *taken == name) {
            let message = format!("{owner} sets it: leave it out");
            findings.error(&path.field("values").field(&name), message);
        } else if !name.starts_with("net.") || !name.chars().all(plain) || leads_out {
            let message = "expected a name under net., as sysctl spells it";
            findings.error(&path.field("values").field(&name), message);
        } else if name == CONNTRACK && value.trim() != "1" {
            let message = format!("{value}: the agent sets it to 1 for Masquerade: expected 1");
            findings.error(&path.field("values").field(&name), message);
        }
        (name, value)
    });
    let values = values.collect();
    Sysctls {
        mode: document.mode.unwrap_or_default(),
        values,
    }
}

/// Settings with an owner already.
fn taken(spec: &DirectorSpec) -> Vec<(&'static str, &'static str)> {
    let mut taken = vec![("net.ipv4.ip_forward", "the agent")];
    if spec.sync.is_some() {
        taken.extend([
            ("net.ipv4.vs.sync_threshold", "spec.sync.threshold"),
            ("net.ipv4.vs.sync_refresh_period", "spec.sync.refreshPeriod"),
            ("net.ipv4.vs.sync_retries", "spec.sync.retries"),
            ("net.ipv4.vs.sync_ports", "spec.sync.ports"),
        ]);
    }
    if spec.stateless_failover {
        taken.extend([
            ("net.ipv4.vs.sloppy_tcp", "spec.statelessFailover"),
            ("net.ipv4.vs.sloppy_sctp", "spec.statelessFailover"),
        ]);
    }
    taken
}

/// The kernel's own tables are 253 to 255; FRR imports no table above 252.
fn announce_table(findings: &mut Findings, path: &Path, table: u32) -> u32 {
    let path = path.field("announceTable");
    match table {
        253..=255 => {
            let message =
                format!("{table} is the kernel's own: expected 1 to 252, or 256 and more");
            findings.error(&path, message);
        }
        256.. => findings.warning(&path, format!("{table}: FRR imports tables 1 to 252 only")),
        _ => {}
    }
    table
}

fn checks(findings: &mut Findings, path: &Path, document: &ChecksDocument) -> CheckLimits {
    let default = CheckLimits::default();
    let declared = document.defaults.clone().unwrap_or_default();
    let declared = timers(findings, &path.field("defaults"), &declared);
    CheckLimits {
        concurrency: document.concurrency.unwrap_or(default.concurrency),
        per_second: document.per_second.unwrap_or(default.per_second),
        exec_concurrency: document
            .exec_concurrency
            .unwrap_or(default.exec_concurrency),
        defaults: CheckDefaults {
            source: document.source.as_ref().map(source).unwrap_or_default(),
            timers: declared.resolve(Timers::default()),
        },
    }
}

fn scripts(findings: &mut Findings, path: &Path, spec: &DirectorSpec) -> Scripts {
    let document = spec.scripts.clone().unwrap_or_default();
    for (index, directory) in document.directories.iter().enumerate() {
        if !directory.starts_with('/') {
            let path = path.field("directories").item(index);
            findings.error(&path, format!("{directory:?}: expected an absolute path"));
        }
    }
    Scripts {
        user: document.user,
        directories: document.directories,
    }
}
