// SPDX-License-Identifier: Apache-2.0

//! Ports and protocols, of Services and EndpointSlices.

use portolan_model::Protocol;

use super::problems::Problems;

/// A port number, 1 to 65,535; anything else is a problem.
pub(super) fn number(field: &str, value: Option<i64>, problems: &mut Problems) -> Option<u16> {
    let Some(value) = value else {
        problems.invalid(field, "missing: expected a port from 1 to 65535");
        return None;
    };
    let port = u16::try_from(value).ok().filter(|port| *port != 0);
    if port.is_none() {
        problems.invalid(field, format!("{value} is not a port: expected 1 to 65535"));
    }
    port
}

/// A protocol; TCP if unset, a problem if unknown.
pub(super) fn protocol(
    field: &str,
    text: Option<&str>,
    problems: &mut Problems,
) -> Option<Protocol> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Some(Protocol::Tcp);
    };
    text.parse()
        .map_err(|error: portolan_model::ParseProtocolError| {
            problems.invalid(field, error.to_string());
        })
        .ok()
}
