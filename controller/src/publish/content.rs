// SPDX-License-Identifier: Apache-2.0

//! Content of the ConfigMap. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

/// Key of the authorities, in PEM.
const CA: &str = "ca.crt";
/// Key of the addresses, one a line.
const CONTROLLERS: &str = "controllers";

/// Addresses of the controllers, sorted: of those that are ready, else of those that do not terminate.
pub(super) fn addresses(slices: &[EndpointSlice], port: &str) -> BTreeSet<SocketAddr> {
    let ready = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|is| is.ready).unwrap_or(true)
    };
    let staying = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        !conditions.and_then(|is| is.terminating).unwrap_or(false)
    };
    let found = select(slices, port, ready);
    match found.is_empty() {
        true => select(slices, port, staying),
        false => found,
    }
}

fn select(
    slices: &[EndpointSlice],
    port: &str,
    accepts: impl Fn(&Endpoint) -> bool,
) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let ports = slice.ports.iter().flatten();
        let named = ports.filter(|one| one.name.as_deref() == Some(port));
        let numbers: Vec<_> = named
            .filter_map(|one| u16::try_from(one.port?).ok())
            .collect();
        for endpoint in slice.endpoints.iter().filter(|one| accepts(one)) {
            let addresses = endpoint.addresses.iter();
            for ip in addresses.filter_map(|text| text.parse::<IpAddr>().ok()) {
                found.extend(numbers.iter().map(|port| SocketAddr::new(ip, *port)));
            }
        }
    }
    found
}

/// The new data of the ConfigMap; `None` if it is up to date. An empty list of addresses and absent
/// authorities leave their key as it is: agents need the last known ones most when no controller is there.
pub(super) fn update(
    data: &BTreeMap<String, String>,
    ca: Option<&str>,
    addresses: &BTreeSet<SocketAddr>,
) -> Option<BTreeMap<String, String>> {
    let lines: String = addresses.iter().map(|one| format!("{one}\n")).collect();
    let wanted = [(CA, ca.unwrap_or_default()), (CONTROLLERS, &lines)];
    let mut new = data.clone();
    for (key, value) in wanted.into_iter().filter(|(_, value)| !value.is_empty()) {
        new.insert(key.to_owned(), value.to_owned());
    }
    (new != *data).then_some(new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(kind: &str, port: Value, endpoints: Value) -> EndpointSlice {
        let slice = json!({"metadata": {"name": "a"}, "addressType": kind, "ports": port,
            "endpoints": endpoints});
        serde_json::from_value(slice).unwrap()
    }

    fn shown(slices: &[EndpointSlice]) -> Vec<String> {
        let found = addresses(slices, "agents");
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_are_those_of_the_ready_controllers() {
        let ports = json!([{"name": "metrics", "port": 9444}, {"name": "agents", "port": 9443}]);
        let v4 = json!([
            {"addresses": ["10.0.0.2"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.1"]},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
        ]);
        let v6 = json!([{"addresses": ["fd00::1"], "conditions": {"ready": true}}]);
        let names = json!([{"addresses": ["name.example"], "conditions": {"ready": true}}]);
        let slices = [
            slice("IPv4", ports.clone(), v4),
            slice("IPv6", ports.clone(), v6),
            slice("FQDN", ports.clone(), names),
        ];
        assert_eq!(
            shown(&slices),
            ["10.0.0.1:9443", "10.0.0.2:9443", "[fd00::1]:9443"]
        );

        // At a cold start no controller is ready, and agents must find one nevertheless.
        let starting = json!([
            {"addresses": ["10.0.0.4"], "conditions": {"ready": false, "terminating": true}},
            {"addresses": ["10.0.0.3"], "conditions": {"ready": false}},
        ]);
        assert_eq!(
            shown(&[slice("IPv4", ports, starting.clone())]),
            ["10.0.0.3:9443"]
        );
        let other = json!([{"name": "dns", "port": 53}, {"port": 9443}, {"name": "agents"}]);
        assert!(shown(&[slice("IPv4", other, starting)]).is_empty());
    }

    #[test]
    fn only_changes_are_written_and_nothing_known_is_lost() {
        let text = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let one = BTreeSet::from(["10.0.0.1:9443".parse().unwrap()]);
        let full = text(&[("ca.crt", "PEM\n"), ("controllers", "10.0.0.1:9443\n")]);
        assert_eq!(update(&text(&[]), Some("PEM\n"), &one), Some(full.clone()));
        assert_eq!(update(&full, Some("PEM\n"), &one), None);
        assert_eq!(update(&full, None, &BTreeSet::new()), None);
        let foreign = text(&[("controllers", "x"), ("note", "kept")]);
        let mended = text(&[("controllers", "10.0.0.1:9443\n"), ("note", "kept")]);
        assert_eq!(update(&foreign, None, &one), Some(mended));
    }
}
