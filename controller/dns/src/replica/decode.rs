// SPDX-License-Identifier: Apache-2.0

//! From items to changes of a copy.

use std::net::IpAddr;

use portolan_model::Protocol;

use super::follow::FrameError;
use super::pb;
use crate::config::{PodMode, ZoneConfig, ZoneKind};
use crate::input::{Endpoint, Kind, NamesChange, Port, Service, ServiceKey, Slice, SliceKey};
use crate::name;

fn wrong(field: &'static str, value: impl ToString) -> FrameError {
    FrameError {
        field,
        value: value.to_string(),
    }
}

fn names(field: &'static str, texts: &[String]) -> Result<Vec<crate::Name>, FrameError> {
    let name = |text: &String| name::absolute(text).ok_or_else(|| wrong(field, text));
    texts.iter().map(name).collect()
}

pub(super) fn settings(from: pb::Settings) -> Result<ZoneConfig, FrameError> {
    let config = ZoneConfig {
        kind: match from.clusterset {
            true => ZoneKind::ClusterSet,
            false => ZoneKind::Cluster,
        },
        zones: names("zones", &from.zones)?,
        reverse: names("reverse_zones", &from.reverse_zones)?,
        ttl: from.ttl_seconds,
        pods: match from.pods {
            0 => PodMode::Disabled,
            1 => PodMode::Insecure,
            2 => PodMode::Verified,
            other => return Err(wrong("pods", other)),
        },
        endpoint_pod_names: from.endpoint_pod_names,
        zonal: from.zonal,
        ignore_empty: from.ignore_empty,
        namespaces: from.namespaces.into_iter().collect(),
        endpoints: !from.no_endpoints,
        name_server: (!from.name_server.is_empty())
            .then(|| ServiceKey::new(from.name_server_namespace, from.name_server)),
    };
    match config.validate() {
        Ok(()) => Ok(config),
        Err(error) => Err(wrong("begin", error)),
    }
}

pub(super) fn namespace(from: pb::Namespace) -> NamesChange {
    if from.exists {
        NamesChange::Namespace(from.name)
    } else {
        NamesChange::NamespaceRemoved(from.name)
    }
}

pub(super) fn pod(from: pb::Pod) -> Result<NamesChange, FrameError> {
    Ok(NamesChange::PodAddress {
        address: address("pod.address", &from.address)?,
        namespace: from.namespace,
        count: usize::try_from(from.count).map_err(|_| wrong("pod.count", from.count))?,
    })
}

pub(super) fn service(from: pb::Service) -> Result<NamesChange, FrameError> {
    let key = ServiceKey::new(from.namespace, from.name);
    let service = from.spec.map(|from| spec(&key, from)).transpose()?;
    let slices = from.slices.into_iter().map(|from| slice(&key, from));
    let slices = slices.collect::<Result<_, _>>()?;
    Ok(NamesChange::Whole {
        key,
        service,
        slices,
    })
}

fn spec(key: &ServiceKey, from: pb::ServiceSpec) -> Result<Service, FrameError> {
    let kind = match from.external_name {
        Some(target) => Kind::ExternalName { target },
        None if from.headless => Kind::Headless,
        None => Kind::ClusterIp {
            ips: addresses("service.cluster_ips", &from.cluster_ips)?,
        },
    };
    Ok(Service {
        key: key.clone(),
        kind,
        ports: ports(from.ports)?,
        publish_not_ready: false,
    })
}

fn slice(key: &ServiceKey, from: pb::Slice) -> Result<Slice, FrameError> {
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let endpoints = from
        .endpoints
        .into_iter()
        .map(|from| -> Result<_, FrameError> {
            Ok(Endpoint {
                addresses: addresses("endpoint.addresses", &from.addresses)?,
                ready: true,
                hostname: given(from.hostname),
                pod: given(from.pod),
                zone: given(from.zone),
            })
        });
    Ok(Slice {
        key: SliceKey {
            namespace: key.namespace.clone(),
            name: from.name,
        },
        service: key.name.clone(),
        cluster: given(from.cluster),
        endpoints: endpoints.collect::<Result<_, _>>()?,
        ports: ports(from.ports)?,
    })
}

fn address(field: &'static str, text: &str) -> Result<IpAddr, FrameError> {
    text.parse().map_err(|_| wrong(field, text))
}

fn addresses(field: &'static str, texts: &[String]) -> Result<Vec<IpAddr>, FrameError> {
    texts.iter().map(|text| address(field, text)).collect()
}

fn ports(from: Vec<pb::Port>) -> Result<Vec<Port>, FrameError> {
    let port = |from: pb::Port| -> Result<Port, FrameError> {
        let number = u16::try_from(from.number).map_err(|_| wrong("port.number", from.number))?;
        let protocol = from.protocol.parse::<Protocol>();
        Ok(Port {
            protocol: protocol.map_err(|_| wrong("port.protocol", from.protocol))?,
            name: from.name,
            number: Some(number).filter(|number| *number != 0),
        })
    };
    from.into_iter().map(port).collect()
}
