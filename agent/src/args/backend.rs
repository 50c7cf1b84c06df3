// SPDX-License-Identifier: Apache-2.0

//! Flags of `backend`, and names of backends.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use portolan_runtime::duration_within;
use serde::{Deserialize, Serialize};

use super::SocketArgs;

/// The shortest and the longest `--for`.
const FOR: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(366 * 86_400)];

/// Flags of `backend`.
#[derive(Debug, Args)]
pub struct BackendArgs {
    /// New state of the backend.
    pub command: BackendCommand,

    /// The backend: a load balancer and an address. Without a port, all ports of the address.
    #[arg(value_name = "[NAMESPACE/]NAME/ADDRESS[:PORT]")]
    pub backend: BackendName,

    /// Time after which the command ends by itself. Without it, it holds until `enable`.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration_within(FOR[0], FOR[1]))]
    pub duration: Option<Duration>,

    /// The running agent.
    #[command(flatten)]
    pub agent: SocketArgs,
}

/// Commands of `backend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendCommand {
    /// No new connections; present ones go on.
    Drain,
    /// Let its health checks decide again, also if the file drains or disables it.
    Enable,
    /// No new connections; it leaves the kernel when the present ones have ended, or after the drain timeout.
    Disable,
}

impl BackendCommand {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }
}

/// One or more backends of a load balancer, as operators name them: `[NAMESPACE/]NAME/ADDRESS[:PORT]`.
///
/// The order has a name without a port before those of its ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BackendName {
    /// `NAMESPACE/NAME` of the load balancer.
    pub balancer: String,
    /// Address.
    pub ip: IpAddr,
    /// Port; `None` for all.
    pub port: Option<u16>,
}

/// A text that is no name of a backend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected [NAMESPACE/]NAME/ADDRESS[:PORT], such as web/10.0.0.11:8080")]
pub struct BadBackendName;

impl BackendName {
    /// True if it names a backend with this address of its load balancer.
    #[must_use]
    pub fn covers(&self, address: SocketAddr) -> bool {
        self.ip == address.ip() && self.port.is_none_or(|port| port == address.port())
    }
}

impl FromStr for BackendName {
    type Err = BadBackendName;

    fn from_str(text: &str) -> Result<Self, BadBackendName> {
        let (balancer, address) = text.rsplit_once('/').ok_or(BadBackendName)?;
        let is_name = |part: &str| !part.is_empty() && !part.contains(char::is_whitespace);
        let parts: Vec<_> = balancer.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|part| is_name(part)) {
            return Err(BadBackendName);
        }
        let unbracketed = address
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let (ip, port) = match address.parse::<SocketAddr>() {
            Ok(socket) => (socket.ip(), Some(socket.port())),
            Err(_) => match unbracketed.unwrap_or(address).parse() {
                Ok(ip) => (ip, None),
                Err(_) => return Err(BadBackendName),
            },
        };
        Ok(Self {
            balancer: full_name(balancer),
            ip,
            port,
        })
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}/{}", self.balancer, SocketAddr::new(self.ip, port)),
            None => write!(f, "{}/{}", self.balancer, self.ip),
        }
    }
}

/// A name with its namespace.
pub(crate) fn full_name(name: &str) -> String {
    match name.contains('/') {
        true => name.to_owned(),
        false => format!("default/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_backends_come_back() {
        for (text, full) in [
            ("web/10.0.0.1", "default/web/10.0.0.1"),
            ("web/10.0.0.1:80", "default/web/10.0.0.1:80"),
            ("shop/web/[fd00::1]:80", "shop/web/[fd00::1]:80"),
            ("web/fd00::1", "default/web/fd00::1"),
            ("web/[fd00::1]", "default/web/fd00::1"),
        ] {
            let name: BackendName = text.parse().unwrap();
            assert_eq!(name.to_string(), full);
            assert_eq!(full.parse(), Ok(name));
        }
        for bad in [
            "",
            "web",
            "10.0.0.1",
            "/10.0.0.1",
            "web/",
            "web/host",
            "a/b/c/10.0.0.1",
            "a//10.0.0.1",
            "web/10.0.0.1:",
            "web/10.0.0.1:65536",
            "we b/10.0.0.1",
        ] {
            assert_eq!(bad.parse::<BackendName>(), Err(BadBackendName), "{bad:?}");
        }
    }

    #[test]
    fn a_name_without_a_port_names_all_ports() {
        let name = |text: &str| text.parse::<BackendName>().unwrap();
        let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
        assert!(name("web/10.0.0.1").covers(address));
        assert!(name("web/10.0.0.1:80").covers(address));
        assert!(!name("web/10.0.0.1:81").covers(address));
        assert!(!name("web/10.0.0.2").covers(address));
        assert!(name("web/10.0.0.1") < name("web/10.0.0.1:80"));
    }
}
