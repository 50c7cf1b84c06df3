// SPDX-License-Identifier: Apache-2.0

//! `Director` objects.

use std::time::Duration;

use portolan_model::check::{Source, Timers};

use super::{check, period, unless};
use crate::director::{CheckLimits, DEFAULT_MARKS, Director, Scripts, Sync, Timeouts, Vips};
use crate::document::{
    ApiVersion, CheckDefaultsDocument, ChecksDocument, DirectorDocument, DirectorKind,
    DirectorSpec, GratuitousDocument, Metadata, ScriptsDocument, SyncDocument, SysctlValue,
    SysctlsDocument, TimeoutsDocument, VipsDocument,
};

pub(super) fn document(object: &Director) -> DirectorDocument {
    DirectorDocument {
        api_version: ApiVersion::V1Alpha1,
        kind: DirectorKind::Director,
        metadata: Metadata {
            name: object.name.clone(),
            namespace: None,
            labels: object.tags.labels.clone(),
            annotations: object.tags.annotations.clone(),
            resource_version: object.tags.resource_version.map(|it| it.to_string()),
        },
        spec: DirectorSpec {
            vips: unless(vips(&object.vips), &VipsDocument::default()),
            sync: object.sync.as_ref().map(sync),
            stateless_failover: object.stateless_failover,
            timeouts: unless(timeouts(object.timeouts), &TimeoutsDocument::default()),
            sysctls: unless(sysctls(object), &SysctlsDocument::default()),
            marks: unless(object.marks, &DEFAULT_MARKS),
            announce_table: object.announce_table,
            checks: unless(checks(&object.checks), &ChecksDocument::default()),
            checks_on_standby: unless(object.checks_on_standby, &true),
            maintenance_directory: object.maintenance_directory.clone(),
            scripts: unless(scripts(&object.scripts), &ScriptsDocument::default()),
        },
    }
}

fn vips(vips: &Vips) -> VipsDocument {
    let default = Vips::default();
    let announce = GratuitousDocument {
        count: unless(vips.announcements, &default.announcements),
        interval: unless(vips.announcement_interval, &default.announcement_interval).map(period),
    };
    VipsDocument {
        binding: unless(vips.binding, &default.binding),
        interface: vips.interface.clone(),
        role: unless(vips.role, &default.role),
        announce: unless(announce, &GratuitousDocument::default()),
    }
}

fn sync(sync: &Sync) -> SyncDocument {
    let default = Sync::new("");
    let threshold = unless(sync.threshold, &default.threshold);
    SyncDocument {
        interface: sync.interface.clone(),
        id: u32::from(sync.id),
        group: unless(sync.group, &default.group),
        port: unless(sync.port, &default.port),
        ttl: unless(sync.ttl, &default.ttl),
        max_length: unless(sync.max_length, &default.max_length),
        ports: unless(sync.ports, &default.ports).map(u32::from),
        threshold: threshold.map(|(at, each)| [at, each]),
        refresh_period: unless(sync.refresh_period, &Duration::ZERO).map(period),
        retries: u32::from(sync.retries),
    }
}

fn timeouts(timeouts: Timeouts) -> TimeoutsDocument {
    TimeoutsDocument {
        tcp: timeouts.tcp.map(period),
        tcp_fin: timeouts.tcp_fin.map(period),
        udp: timeouts.udp.map(period),
    }
}

/// A value that is a number is written as one.
fn sysctls(object: &Director) -> SysctlsDocument {
    let values = object.sysctls.values.iter().map(|(name, value)| {
        let number = value.parse::<i64>().ok();
        let number = number.filter(|number| number.to_string() == *value);
        let value = number.map_or_else(|| SysctlValue::Text(value.clone()), SysctlValue::Number);
        (name.clone(), value)
    });
    SysctlsDocument {
        values: values.collect(),
        mode: unless(object.sysctls.mode, &<_>::default()),
    }
}

fn checks(limits: &CheckLimits) -> ChecksDocument {
    let default = CheckLimits::default();
    let timers = timers(limits.defaults.timers);
    ChecksDocument {
        concurrency: unless(limits.concurrency, &default.concurrency),
        per_second: unless(limits.per_second, &default.per_second),
        exec_concurrency: unless(limits.exec_concurrency, &default.exec_concurrency),
        source: unless(limits.defaults.source.clone(), &Source::default())
            .map(|source| check::source(&source)),
        defaults: unless(timers, &CheckDefaultsDocument::default()),
    }
}

fn timers(timers: Timers) -> CheckDefaultsDocument {
    let default = Timers::default();
    CheckDefaultsDocument {
        interval: unless(timers.interval, &default.interval).map(period),
        fast_interval: unless(timers.fast_interval, &default.fast_interval).map(period),
        timeout: unless(timers.timeout, &default.timeout).map(period),
        rise: unless(timers.rise, &default.rise),
        fall: unless(timers.fall, &default.fall),
    }
}

fn scripts(scripts: &Scripts) -> ScriptsDocument {
    ScriptsDocument {
        user: scripts.user.clone(),
        directories: scripts.directories.clone(),
    }
}
