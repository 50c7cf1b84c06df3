// SPDX-License-Identifier: Apache-2.0

//! ServiceImports, and what is written into the status of ServiceExports, to and from messages.

use std::sync::Arc;

use portolan_catalog::{
    CONDITIONS, Condition, ExportPort, ExportStatus, ImportSpec, ObjectKey, OwnImport,
    ServiceImport,
};
use portolan_proto::v1;

use super::decode::{Result, family, ips, labels, name, number, protocol};
use super::encode::{encode_export_port, encode_family, encode_ips, encode_labels};
use super::error::WireError;

/// The longest text, in bytes. The source of an edge reads a longer one as empty.
const MAX_TEXT: usize = 4096;
/// The most entries of a list or map.
const MOST: usize = 256;
/// The most conditions: no others are read.
const MAX_CONDITIONS: usize = CONDITIONS.len();

pub(super) fn encode_import(import: &ServiceImport) -> v1::EdgeImport {
    v1::EdgeImport {
        uid: (*import.uid).to_owned(),
        generation: import.generation,
        created: import.created,
        own: import.own.as_deref().map(encode_own),
    }
}

fn encode_own(own: &OwnImport) -> v1::EdgeOwnImport {
    v1::EdgeOwnImport {
        winner: (*own.winner).to_owned(),
        labels: encode_labels(&own.labels),
        annotations: encode_labels(&own.annotations),
        spec: own.spec.as_ref().map(encode_spec),
        clusters: own.clusters.iter().map(|id| (**id).to_owned()).collect(),
        conditions: encode_conditions(&own.conditions),
    }
}

fn encode_spec(spec: &ImportSpec) -> v1::EdgeImportSpec {
    let families = spec.families.iter().copied().map(encode_family);
    v1::EdgeImportSpec {
        headless: spec.headless,
        ports: spec.ports.iter().map(encode_export_port).collect(),
        ips: encode_ips(&spec.ips),
        families: families.map(Into::into).collect(),
        affinity_seconds: spec.affinity_seconds,
        internal_local: spec.internal_local,
        traffic_distribution: spec.traffic_distribution.as_deref().map(str::to_owned),
    }
}

pub(super) fn encode_conditions(conditions: &[Condition]) -> Vec<v1::EdgeCondition> {
    let encode = |condition: &Condition| v1::EdgeCondition {
        r#type: (*condition.kind).to_owned(),
        status: (*condition.status).to_owned(),
        reason: (*condition.reason).to_owned(),
        message: (*condition.message).to_owned(),
        generation: condition.generation,
        since: (*condition.since).to_owned(),
    };
    conditions.iter().map(encode).collect()
}

pub(super) fn import(key: ObjectKey, from: &v1::EdgeImport) -> Result<ServiceImport> {
    Ok(ServiceImport {
        key,
        uid: text("import.uid", &from.uid)?,
        generation: from.generation,
        created: from.created,
        own: from.own.as_ref().map(own).transpose()?.map(Box::new),
    })
}

fn own(from: &v1::EdgeOwnImport) -> Result<OwnImport> {
    few("import.own.labels", &from.labels)?;
    few("import.own.annotations", &from.annotations)?;
    few("import.own.clusters", &from.clusters)?;
    let clusters = from.clusters.iter();
    let clusters = clusters.map(|id| text("import.own.clusters", id));
    Ok(OwnImport {
        winner: text("import.own.winner", &from.winner)?,
        labels: labels(&from.labels),
        annotations: labels(&from.annotations),
        spec: from.spec.as_ref().map(spec).transpose()?,
        clusters: clusters.collect::<Result<_>>()?,
        conditions: conditions("import.own.conditions", &from.conditions)?,
    })
}

fn spec(from: &v1::EdgeImportSpec) -> Result<ImportSpec> {
    few("import.own.spec.ports", &from.ports)?;
    few("import.own.spec.ips", &from.ips)?;
    few("import.own.spec.families", &from.families)?;
    let ports = from.ports.iter().map(|port| {
        let given = port.app_protocol.as_deref();
        let app_protocol = given.map(|given| text("import.own.spec.ports.app_protocol", given));
        Ok(ExportPort {
            name: name("import.own.spec.ports.name", &port.name)?,
            protocol: protocol(port.protocol)?,
            port: number("import.own.spec.ports.port", port.port)?,
            app_protocol: app_protocol.transpose()?,
        })
    });
    let families = from.families.iter();
    let families = families.map(|number| family("import.own.spec.families", *number));
    let distribution = from.traffic_distribution.as_deref();
    let distribution =
        distribution.map(|given| text("import.own.spec.traffic_distribution", given));
    Ok(ImportSpec {
        headless: from.headless,
        ports: ports.collect::<Result<_>>()?,
        ips: ips("import.own.spec.ips", &from.ips)?,
        families: families.collect::<Result<_>>()?,
        // Whatever the cluster has: it is only compared.
        affinity_seconds: from.affinity_seconds,
        internal_local: from.internal_local,
        traffic_distribution: distribution.transpose()?,
    })
}

/// The status of a ServiceExport.
pub(super) fn export_status(from: &v1::EdgeExport) -> Result<ExportStatus> {
    Ok(ExportStatus {
        generation: from.generation,
        conditions: conditions("export.conditions", &from.conditions)?,
    })
}

fn conditions(field: &'static str, from: &[v1::EdgeCondition]) -> Result<Vec<Condition>> {
    if from.len() > MAX_CONDITIONS {
        let why = format!("more than {MAX_CONDITIONS}");
        return Err(WireError::new(field, why));
    }
    let decode = |from: &v1::EdgeCondition| {
        Ok(Condition {
            kind: text(field, &from.r#type)?,
            status: text(field, &from.status)?,
            reason: text(field, &from.reason)?,
            message: text(field, &from.message)?,
            generation: from.generation,
            since: text(field, &from.since)?,
        })
    };
    from.iter().map(decode).collect()
}

fn text(field: &'static str, given: &str) -> Result<Arc<str>> {
    if given.len() > MAX_TEXT {
        let why = format!("longer than {MAX_TEXT} bytes");
        return Err(WireError::new(field, why));
    }
    Ok(given.into())
}

pub(super) fn few<T>(field: &'static str, list: &[T]) -> Result<()> {
    if list.len() > MOST {
        return Err(WireError::new(field, format!("more than {MOST}")));
    }
    Ok(())
}
