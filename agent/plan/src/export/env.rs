// SPDX-License-Identifier: Apache-2.0

//! The environment variables that a kubelet gives the containers of a pod for Services.
//!
//! The rules are those of upstream's `pkg/kubelet/envvars` and of `getServiceEnvVarMap`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use portolan_model::{Family, FrontendAddress, FrontendKind, NodeTable, Protocol, RecordKey};

use super::Export;

/// The Service that every pod has variables for, and its namespace.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// One variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The pods that variables are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pods<'p> {
    /// Their namespace.
    pub namespace: &'p str,
    /// `spec.enableServiceLinks`: without it they have variables for the API server alone.
    pub has_links: bool,
}

/// One port of a Service, with its name in capitals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvPort {
    /// The name, in capitals.
    pub name: Option<String>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the cluster IP.
    pub port: i32,
}

/// A name as a part of a variable's name. `None` if it has other characters than names of Services have: a line of
/// the output would not be one variable.
#[must_use]
pub fn in_capitals(name: &str) -> Option<String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_name = !name.is_empty() && name.chars().all(is_good);
    is_name.then(|| name.to_uppercase().replace('-', "_"))
}

/// The Services that pods have variables for, by name, of some with namespace and name. One of the pods' namespace
/// takes precedence over the API server's.
pub fn choose<'s, T>(
    services: impl IntoIterator<Item = (&'s str, &'s str, T)>,
    pods: Pods<'_>,
) -> BTreeMap<&'s str, T> {
    let mut chosen = BTreeMap::new();
    for (namespace, name, service) in services {
        if (namespace, name) == API_SERVER {
            chosen.entry(name).or_insert(service);
        } else if namespace == pods.namespace && pods.has_links {
            chosen.insert(name, service);
        }
    }
    chosen
}

/// Adds variables to others. Of two with one name, which two Services can have, the later is the one: a kubelet takes
/// either.
pub fn merge(all: &mut Vec<Variable>, more: Vec<Variable>) {
    for variable in more {
        match all.iter_mut().find(|known| known.name == variable.name) {
            Some(known) => *known = variable,
            None => all.push(variable),
        }
    }
}

/// The variables of one Service, in the kubelet's order. `prefix` is its name in capitals, `ip` its cluster IP.
#[must_use]
pub fn variables(prefix: &str, ip: &str, ports: &[EnvPort]) -> Vec<Variable> {
    let mut all = vec![variable(prefix, "_SERVICE_HOST", ip)];
    for (index, port) in ports.iter().enumerate() {
        if index == 0 {
            all.push(variable(prefix, "_SERVICE_PORT", port.port));
        }
        if let Some(name) = &port.name {
            let suffix = format!("_SERVICE_PORT_{name}");
            all.push(variable(prefix, &suffix, port.port));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        all.extend(links(prefix, ip, port, index == 0));
    }
    all
}

/// Variables as Docker's links have them.
fn links(prefix: &str, ip: &str, port: &EnvPort, is_first: bool) -> Vec<Variable> {
    let (port, protocol) = (port.port, port.protocol.as_str());
    let scheme = protocol.to_lowercase();
    let url = match ip.contains(':') {
        false => format!("{scheme}://{ip}:{port}"),
        true => format!("{scheme}://[{ip}]:{port}"),
    };
    let mut all = Vec::new();
    if is_first {
        all.push(variable(prefix, "_PORT", &url));
    }
    let prefix = format!("{prefix}_PORT_{port}_{protocol}");
    all.push(variable(&prefix, "", &url));
    all.push(variable(&prefix, "_PROTO", &scheme));
    all.push(variable(&prefix, "_PORT", port));
    all.push(variable(&prefix, "_ADDR", ip));
    all
}

fn variable(prefix: &str, suffix: &str, value: impl ToString) -> Variable {
    Variable {
        name: format!("{prefix}{suffix}"),
        value: value.to_string(),
    }
}

/// The variables of pods for the Services of a table, one a line. A Service with two cluster IPs has that of `family`
/// if it can. A table does not have a Service's order of ports: they are in that of their numbers.
#[must_use]
pub fn env(table: &NodeTable, pods: Pods<'_>, family: Family) -> Export {
    let mut services: BTreeMap<(&str, &str), Vec<(&RecordKey, Port)>> = BTreeMap::new();
    for record in table.records.values() {
        let key = &record.key;
        let ports = record.frontends.iter().filter_map(|frontend| {
            match (frontend.kind, frontend.address) {
                (FrontendKind::ClusterIp, FrontendAddress::Vip(ip)) => Some((ip, frontend.port)),
                _ => None,
            }
        });
        let mut ports: Vec<_> = ports.collect();
        ports.sort_by_key(|(ip, _)| (Family::of(*ip) != family, *ip));
        if let Some((ip, port)) = ports.first() {
            let of_service = services.entry((&*key.namespace, &*key.service));
            of_service.or_default().push((key, (*port, ip.to_string())));
        }
    }
    let services = services.into_iter();
    let services = services.map(|((namespace, name), ports)| (namespace, name, ports));
    let (mut all, mut export) = (Vec::new(), Export::default());
    for (name, ports) in choose(services, pods) {
        match of_ports(name, ports) {
            Some(more) => merge(&mut all, more),
            None => export.notes.push(format!(
                "Service {name}: left out: its name, or that of a port, is no part of a variable's"
            )),
        }
    }
    for Variable { name, value } in all {
        // Writing to a string never fails.
        let _ = writeln!(export.text, "{name}={value}");
    }
    export
}

/// A port of a cluster IP.
type Port = (u16, String);

fn of_ports(name: &str, mut ports: Vec<(&RecordKey, Port)>) -> Option<Vec<Variable>> {
    ports.sort_by_key(|(key, (port, _))| (*port, key.protocol));
    let ip = ports.first().map(|(_, (_, ip))| ip.clone())?;
    let ports: Option<Vec<_>> = ports
        .into_iter()
        .map(|(key, (port, _))| {
            let name = match &*key.port {
                "" => None,
                name => Some(in_capitals(name)?),
            };
            Some(EnvPort {
                name,
                protocol: key.protocol,
                port: port.into(),
            })
        })
        .collect();
    Some(variables(&in_capitals(name)?, &ip, &ports?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::{Frontend, Record};

    use super::*;

    fn table(services: &[(&str, &str, &str, u16, &[&str])]) -> NodeTable {
        let mut table = NodeTable::default();
        for (namespace, service, port, number, ips) in services {
            let mut record = Record::new(RecordKey {
                cluster: "".into(),
                namespace: (*namespace).into(),
                service: (*service).into(),
                port: (*port).into(),
                protocol: Protocol::Tcp,
            });
            let frontend = |ip: &&str| {
                let ip = FrontendAddress::Vip(ip.parse().unwrap());
                Frontend::new(FrontendKind::ClusterIp, ip, *number)
            };
            record.frontends = ips.iter().map(frontend).collect();
            table.records.insert(record.key.clone(), Arc::new(record));
        }
        table
    }

    fn lines(table: &NodeTable, namespace: &str, family: Family) -> Vec<String> {
        let pods = Pods {
            namespace,
            has_links: true,
        };
        let export = env(table, pods, family);
        export.text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn services_of_a_table_have_their_variables() {
        let table = table(&[
            (
                "default",
                "redis-master",
                "b",
                6379,
                &["10.0.0.11", "fd00::11"],
            ),
            (
                "default",
                "redis-master",
                "a",
                6380,
                &["10.0.0.11", "fd00::11"],
            ),
            ("other", "absent", "", 80, &["10.0.0.12"]),
        ]);
        let v4 = lines(&table, "default", Family::V4);
        assert_eq!(
            v4[..4],
            [
                "REDIS_MASTER_SERVICE_HOST=10.0.0.11",
                "REDIS_MASTER_SERVICE_PORT=6379",
                "REDIS_MASTER_SERVICE_PORT_B=6379",
                "REDIS_MASTER_SERVICE_PORT_A=6380",
            ]
        );
        assert_eq!(v4.len(), 13, "{v4:#?}");
        let v6 = lines(&table, "default", Family::V6);
        assert_eq!(v6[4], "REDIS_MASTER_PORT=tcp://[fd00::11]:6379");
    }

    #[test]
    fn the_api_server_is_for_all_and_a_bad_name_is_noted() {
        let table = table(&[
            ("default", "kubernetes", "https", 443, &["10.0.0.1"]),
            ("shop", "a\nB=c", "", 80, &["10.0.0.2"]),
        ]);
        let pods = Pods {
            namespace: "shop",
            has_links: true,
        };
        let export = env(&table, pods, Family::V4);
        assert!(
            export
                .text
                .starts_with("KUBERNETES_SERVICE_HOST=10.0.0.1\n")
        );
        assert_eq!(export.text.lines().count(), 8);
        assert_eq!(export.notes.len(), 1);
    }
}
