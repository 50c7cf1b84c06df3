// SPDX-License-Identifier: Apache-2.0

//! `-a`: real servers.

use std::net::IpAddr;

use super::{Service, identity, socket};
use crate::document::{
    BackendDocument, ForwardingDocument, Method, TunnelChecksum, TunnelDocument, TunnelKind,
};
use crate::import::{Class, Draft, Origin};

/// The options of a server.
struct Server {
    socket: Option<(IpAddr, Option<u16>)>,
    forwarding: ForwardingDocument,
    weight: u32,
    upper: u32,
    lower: u32,
}

pub(super) fn read(draft: &mut Draft, origin: &Origin, options: &[&str], services: &mut [Service]) {
    let identity = identity(options);
    let mut services = services.iter_mut();
    let Some(service) = services.find(|service| Some(&service.identity) == identity.as_ref())
    else {
        let message = "expected after the -A of its service";
        draft.note(origin, Class::Error, "-a", message);
        return;
    };
    let mut server = Server {
        socket: None,
        forwarding: ForwardingDocument {
            // The default of ipvsadm.
            method: Some(Method::Direct),
            tunnel: None,
        },
        weight: 1,
        upper: 0,
        lower: 0,
    };
    let mut rest = options.iter().copied();
    while let Some(option) = rest.next() {
        match server.option(option, &mut || rest.next().unwrap_or_default()) {
            None => {}
            Some(true) => draft.note(origin, Class::Same, option, ""),
            Some(false) => draft.note(origin, Class::Error, option, "unknown or wrong value"),
        }
    }
    if server.weight > u32::from(u16::MAX) {
        let message = format!("{} became 65535, the most", server.weight);
        draft.note(origin, Class::Nearest, "-w", message);
    }
    let is_marked = service.frontend.mark.is_some();
    match server.backend(is_marked, service.spec.persistence.is_some()) {
        Some(backend) => service.spec.backends.push(backend),
        None => draft.note(
            origin,
            Class::Error,
            "-r",
            "missing: expected the real server",
        ),
    }
}

impl Server {
    /// Takes an option; whether it is right, or nothing if it names the service.
    fn option<'a>(&mut self, option: &str, value: &mut impl FnMut() -> &'a str) -> Option<bool> {
        let set =
            |target: &mut u32, text: &str| text.parse().map(|number| *target = number).is_ok();
        let is_right = match option {
            "-t" | "--tcp-service" | "-u" | "--udp-service" | "--sctp-service" | "-f"
            | "--fwmark-service" => {
                value();
                return None;
            }
            "-6" | "--ipv6" => return None,
            "-r" | "--real-server" => {
                self.socket = socket(value());
                self.socket.is_some()
            }
            "-w" | "--weight" => set(&mut self.weight, value()),
            "-x" | "--u-threshold" => set(&mut self.upper, value()),
            "-y" | "--l-threshold" => set(&mut self.lower, value()),
            _ => tunnel_option(option, value, &mut self.forwarding),
        };
        Some(is_right)
    }

    /// The backend. By mark, the port of a server has no effect if it is not masqueraded, or with persistence.
    fn backend(self, is_marked: bool, is_persistent: bool) -> Option<BackendDocument> {
        let (address, port) = self.socket?;
        let masquerades = self.forwarding.method == Some(Method::Masquerade);
        let is_ignored = is_marked && (is_persistent || !masquerades);
        let weight = u16::try_from(self.weight).unwrap_or(u16::MAX);
        Some(BackendDocument {
            name: None,
            address,
            port: port.filter(|_| !is_ignored),
            weight: (weight != 1).then_some(weight),
            max_connections: self.upper,
            resume_connections: self.lower,
            forwarding: (!masquerades).then_some(self.forwarding),
            checks: None,
            administrative_state: None,
        })
    }
}

fn tunnel_option<'a>(
    option: &str,
    value: &mut impl FnMut() -> &'a str,
    forwarding: &mut ForwardingDocument,
) -> bool {
    let tunnel = |forwarding: &mut ForwardingDocument, change: &dyn Fn(&mut TunnelDocument)| {
        change(forwarding.tunnel.get_or_insert_default());
        true
    };
    let checksum = |checksum| move |tunnel: &mut TunnelDocument| tunnel.checksum = Some(checksum);
    match option {
        "-m" | "--masquerading" => forwarding.method = Some(Method::Masquerade),
        "-g" | "--gatewaying" => forwarding.method = Some(Method::Direct),
        "-i" | "--ipip" => forwarding.method = Some(Method::Tunnel),
        "--tun-type" => {
            let kind = match value() {
                "ipip" => TunnelKind::Ipip,
                "gue" => TunnelKind::Gue,
                "gre" => TunnelKind::Gre,
                _ => return false,
            };
            return tunnel(forwarding, &|tunnel| tunnel.kind = Some(kind));
        }
        "--tun-port" => {
            let Ok(port) = value().parse() else {
                return false;
            };
            return tunnel(forwarding, &|tunnel| tunnel.port = Some(port));
        }
        "--tun-nocsum" => return tunnel(forwarding, &checksum(TunnelChecksum::None)),
        "--tun-csum" => return tunnel(forwarding, &checksum(TunnelChecksum::Full)),
        "--tun-remcsum" => return tunnel(forwarding, &checksum(TunnelChecksum::Remote)),
        _ => return false,
    }
    true
}
