// SPDX-License-Identifier: Apache-2.0

//! Destination and source of a probe.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_health::{Assigned, LoadBalancer};
use portolan_model::check::{Probe, Source, Via};

/// Where a probe goes, and where from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// Source of the probe's packets.
    pub source: Source,
    /// Names that programs are told; set for programs alone, so that other probes are shared.
    pub names: Option<Names>,
}

/// Names about the backend that a program is told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Names {
    /// Name of the load balancer: `default/web`.
    pub name: Arc<str>,
    /// Frontend: `TCP/192.0.2.10:80`.
    pub frontend: Arc<str>,
}

impl Target {
    /// The target of a check of a backend; `None` if the check goes through a virtual server and there
    /// is none for it.
    #[must_use]
    pub fn of(balancer: &LoadBalancer, backend: SocketAddr, assigned: &Assigned) -> Option<Self> {
        let check = &assigned.check;
        let way = match check.via {
            Via::Direct => None,
            Via::Service { .. } => Some(assigned.way?),
        };
        let own = || {
            SocketAddr::new(
                check.address.unwrap_or(backend.ip()),
                check.port.unwrap_or(backend.port()),
            )
        };
        let address = way.map_or_else(own, |way| way.address);
        let mut source = check.source.clone();
        // A host has one source address for the checks of both families. A socket of the other one cannot have it.
        source.address = source
            .address
            .filter(|source| source.is_ipv4() == address.is_ipv4());
        if let Some(way) = way {
            source.mark = Some(way.mark);
            source.address = source.address.or(way.source);
        }
        let is_program = matches!(check.probe, Probe::Exec(_));
        let names = is_program.then(|| Names {
            name: Arc::clone(&balancer.name),
            frontend: Arc::clone(&balancer.frontend),
        });
        Some(Self {
            address,
            source,
            names,
        })
    }

    /// An address, by whatever way the kernel chooses.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            source: Source::default(),
            names: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use portolan_health::Way;
    use portolan_model::check::{Check, ExecProbe, HealthPolicy, TcpProbe, WeightFrom};

    use super::*;

    fn target(check: Check, way: Option<Way>) -> Option<Target> {
        let balancer = LoadBalancer {
            name: "default/web".into(),
            frontend: "TCP/192.0.2.10:80".into(),
            policy: HealthPolicy::default(),
            has_sorry_server: false,
            backends: BTreeMap::new(),
        };
        let assigned = Assigned {
            check: check.into(),
            way,
        };
        Target::of(&balancer, "10.0.0.1:8080".parse().unwrap(), &assigned)
    }

    #[test]
    fn a_check_goes_to_the_backend_or_where_it_says() {
        let mut check = Check::new(Probe::Tcp(TcpProbe::default()));
        let direct = target(check.clone(), None).unwrap();
        assert_eq!(direct, Target::at("10.0.0.1:8080".parse().unwrap()));
        check.port = Some(9);
        check.address = Some("fd00::1".parse().unwrap());
        assert_eq!(
            target(check, None).unwrap().address.to_string(),
            "[fd00::1]:9"
        );
    }

    #[test]
    fn a_check_through_the_service_goes_to_its_virtual_server_alone() {
        let mut check = Check::new(Probe::Tcp(TcpProbe::default()));
        check.via = Via::Service { frontend: None };
        assert_eq!(target(check.clone(), None), None);
        let way = Way {
            address: "192.0.2.10:80".parse().unwrap(),
            mark: 7,
            source: Some("10.0.0.9".parse().unwrap()),
        };
        let through = target(check.clone(), Some(way)).unwrap();
        assert_eq!(
            (through.address, through.source.mark),
            (way.address, Some(7))
        );
        assert_eq!(through.source.address, way.source);
        check.source.address = Some("10.0.0.8".parse().unwrap());
        let own = target(check.clone(), Some(way)).unwrap().source.address;
        assert_eq!(own, check.source.address);
    }

    #[test]
    fn a_source_address_of_the_other_family_is_left_out() {
        let mut check = Check::new(Probe::Tcp(TcpProbe::default()));
        let other = Some("fd00::8".parse().unwrap());
        check.source.address = other;
        check.source.mark = Some(5);
        let direct = target(check.clone(), None).unwrap().source;
        assert_eq!((direct.address, direct.mark), (None, Some(5)));
        // The address of the check counts, not that of the backend.
        let mut elsewhere = check.clone();
        elsewhere.address = Some("fd00::1".parse().unwrap());
        let direct = target(elsewhere, None).unwrap().source;
        assert_eq!(direct.address, other);
        check.via = Via::Service { frontend: None };
        let way = Way {
            address: "192.0.2.10:80".parse().unwrap(),
            mark: 7,
            source: Some("10.0.0.9".parse().unwrap()),
        };
        let through = target(check, Some(way)).unwrap().source;
        assert_eq!(through.address, way.source);
    }

    #[test]
    fn only_programs_are_told_names() {
        let exec = Probe::Exec(ExecProbe {
            command: vec!["/bin/true".to_owned()],
            weight_from: WeightFrom::None,
        });
        let names = target(Check::new(exec), None).unwrap().names.unwrap();
        assert_eq!(&*names.name, "default/web");
    }
}
