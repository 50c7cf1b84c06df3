// SPDX-License-Identifier: Apache-2.0

//! Health checks of the backends of a load balancer, as the agent runs them.
//!
//! The types hold checked values only: what a file may leave out has its default here, and durations
//! are at least one millisecond.

mod files;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Protocol;

/// One health check. Every backend of a record passes or fails it by itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Check {
    /// Request, and the answer that passes.
    pub probe: Probe,
    /// Address of the probe; `None` for the backend's own.
    pub address: Option<IpAddr>,
    /// Port of the probe, 1 to 65,535; `None` for the backend's own.
    pub port: Option<u16>,
    /// The way of the probe to the backend.
    pub via: Via,
    /// Source of the probe's packets.
    pub source: Source,
    /// Intervals and counts.
    pub timers: Timers,
    /// Whether every failure is logged, and not only changes of state.
    pub log_failures: bool,
    /// Fields that the host decides; until then they have the built-in defaults.
    #[serde(default, skip_serializing_if = "Inherited::is_none")]
    pub inherited: Inherited,
}

impl Check {
    /// A check with the defaults of everything but its probe.
    #[must_use]
    pub fn new(probe: Probe) -> Self {
        Self {
            probe,
            address: None,
            port: None,
            via: Via::Direct,
            source: Source::default(),
            timers: Timers::default(),
            log_failures: false,
            inherited: Inherited::default(),
        }
    }

    /// The check as a host with these defaults runs it; `None` if that is this check.
    #[must_use]
    pub fn on_host(&self, defaults: &CheckDefaults) -> Option<Self> {
        if self.inherited.is_none() {
            return None;
        }
        let mut resolved = Self {
            inherited: Inherited::default(),
            ..self.clone()
        };
        let (timers, of_host) = (&mut resolved.timers, &defaults.timers);
        if self.inherited.source {
            resolved.source.clone_from(&defaults.source);
        }
        if self.inherited.interval {
            timers.interval = of_host.interval;
        }
        if self.inherited.fast_interval {
            timers.fast_interval = of_host.fast_interval;
        }
        if self.inherited.timeout {
            timers.timeout = of_host.timeout;
        }
        if self.inherited.rise {
            timers.rise = of_host.rise;
        }
        if self.inherited.fall {
            timers.fall = of_host.fall;
        }
        Some(resolved)
    }
}

/// Fields of a check that its object leaves to each host. Objects of one host have none: its defaults are known when
/// they are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Inherited {
    /// [`Check::source`].
    #[serde(skip_serializing_if = "is_false")]
    pub source: bool,
    /// [`Timers::interval`].
    #[serde(skip_serializing_if = "is_false")]
    pub interval: bool,
    /// [`Timers::fast_interval`].
    #[serde(skip_serializing_if = "is_false")]
    pub fast_interval: bool,
    /// [`Timers::timeout`].
    #[serde(skip_serializing_if = "is_false")]
    pub timeout: bool,
    /// [`Timers::rise`].
    #[serde(skip_serializing_if = "is_false")]
    pub rise: bool,
    /// [`Timers::fall`].
    #[serde(skip_serializing_if = "is_false")]
    pub fall: bool,
}

impl Inherited {
    /// Returns `true` if nothing is left to the host.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

// The signature is serde's.
fn is_false(value: &bool) -> bool {
    !*value
}

/// Values that a host gives to checks that say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckDefaults {
    /// The source.
    pub source: Source,
    /// The timers.
    pub timers: Timers,
}

/// The way of a probe to its backend.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Via {
    /// A connection to the backend's address.
    #[default]
    Direct,
    /// A connection to the virtual address, which leads to this backend alone.
    Service {
        /// Name of the frontend; `None` for the first one with a fitting protocol.
        frontend: Option<Arc<str>>,
    },
}

/// Source of a probe's packets; the kernel chooses what is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Source {
    /// Source address (`bind`).
    pub address: Option<IpAddr>,
    /// Name of the interface (`SO_BINDTODEVICE`), 1 to 15 bytes.
    pub interface: Option<Arc<str>>,
    /// Firewall mark (`SO_MARK`), never 0.
    pub mark: Option<u32>,
}

/// Intervals and counts of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Timers {
    /// Time between two probes of a backend whose state is settled.
    pub interval: Duration,
    /// Time to the next probe after a result that contradicts the state.
    pub fast_interval: Duration,
    /// Time for a whole exchange.
    pub timeout: Duration,
    /// Passes in a row after which a backend that is down is up; at least 1.
    pub rise: u32,
    /// Failures in a row after which a backend that is up is down; at least 1.
    pub fall: u32,
}

impl Default for Timers {
    /// A refusing backend is out within 7.7 s, a silent one within 13.7 s.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            fast_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
            rise: 2,
            fall: 3,
        }
    }
}

/// Request of a check, and the answer that passes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Probe {
    /// A TCP connection, then a conversation.
    Tcp(TcpProbe),
    /// A TLS handshake.
    Tls(TlsProbe),
    /// One HTTP request.
    Http(Box<HttpProbe>),
    /// One datagram.
    Udp(UdpProbe),
    /// One DNS question.
    Dns(DnsProbe),
    /// `grpc.health.v1.Health/Check`.
    Grpc(GrpcProbe),
    /// An ICMP echo request.
    Icmp,
    /// A program.
    Exec(ExecProbe),
    /// HAProxy's agent check: one line with a weight or a state.
    Agent(AgentProbe),
    /// A number in a file, read every second.
    File(FileProbe),
}

impl Probe {
    /// The protocol of its connections; `None` if it connects to no port.
    #[must_use]
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Tcp(_) | Self::Tls(_) | Self::Http(_) | Self::Grpc(_) | Self::Agent(_) => {
                Some(Protocol::Tcp)
            }
            Self::Udp(_) => Some(Protocol::Udp),
            Self::Dns(dns) if dns.tcp => Some(Protocol::Tcp),
            Self::Dns(_) => Some(Protocol::Udp),
            Self::Icmp | Self::Exec(_) | Self::File(_) => None,
        }
    }
}

/// A conversation over TCP; without steps, a connection passes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TcpProbe {
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// One step of a conversation: sends first, then waits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// Bytes to send.
    pub send: Option<Vec<u8>>,
    /// Regular expression that must match within the next 64 KiB of the answer.
    pub expect: Option<String>,
}

/// A TLS client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TlsProbe {
    /// Server name in the handshake; `None` for none.
    pub server_name: Option<String>,
    /// Authorities that the server's chain must lead to.
    pub verify: Verify,
    /// Path of the client's certificate chain, PEM.
    pub certificate: Option<String>,
    /// Path of the client's key, PEM; set exactly if `certificate` is.
    pub key: Option<String>,
    /// Protocols to offer.
    pub alpn: Vec<String>,
    /// Days for which the server's certificate must remain valid; 0 for no demand.
    pub minimum_days_valid: u32,
}

/// Verification of a TLS server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verify {
    /// Any certificate passes.
    #[default]
    None,
    /// The host's authorities.
    System,
    /// The authorities of a PEM file.
    Ca(String),
}

/// Version of an HTTP request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum HttpVersion {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2, by ALPN with TLS and by prior knowledge without.
    Http2,
}

/// One HTTP request. Redirects are not followed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HttpProbe {
    /// The method.
    pub method: String,
    /// Path and query; begins with `/`.
    pub path: String,
    /// `Host`; `None` for the probe's address.
    pub host: Option<String>,
    /// The version.
    pub version: HttpVersion,
    /// Inclusive ranges of status codes that pass.
    pub statuses: Vec<(u16, u16)>,
    /// Further header fields.
    pub headers: Vec<(String, String)>,
    /// Header fields that the answer must have, with regular expressions of their values.
    pub expect_headers: Vec<(String, String)>,
    /// Regular expression that the first 64 KiB of the body must match.
    pub body_regex: Option<String>,
    /// Regular expression that the first 64 KiB of the body must not match.
    pub body_not_regex: Option<String>,
    /// MD5 digest of the body, as `genhash` prints it.
    pub body_md5: Option<[u8; 16]>,
    /// TLS; `None` for plain HTTP.
    pub tls: Option<TlsProbe>,
}

impl Default for HttpProbe {
    fn default() -> Self {
        Self {
            method: String::from("GET"),
            path: String::from("/"),
            host: None,
            version: HttpVersion::default(),
            statuses: vec![(200, 299)],
            headers: Vec::new(),
            expect_headers: Vec::new(),
            body_regex: None,
            body_not_regex: None,
            body_md5: None,
            tls: None,
        }
    }
}

/// One datagram from a connected socket. An ICMP error fails.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UdpProbe {
    /// Bytes to send.
    pub payload: Vec<u8>,
    /// Whether silence fails.
    pub require_reply: bool,
    /// Half bytes that the reply must begin with; `None` for any value.
    pub expect: Vec<Option<u8>>,
    /// Shortest reply that passes, in bytes.
    pub min_length: u16,
    /// Longest reply that passes, in bytes.
    pub max_length: u16,
}

impl Default for UdpProbe {
    fn default() -> Self {
        Self {
            payload: Vec::new(),
            require_reply: false,
            expect: Vec::new(),
            min_length: 0,
            max_length: 255,
        }
    }
}

/// One DNS question, with a random id and recursion desired.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DnsProbe {
    /// Name of the question.
    pub name: String,
    /// Type of the question, as in a zone file.
    pub record_type: String,
    /// Response codes that pass, as numbers.
    pub rcodes: Vec<u16>,
    /// Addresses that the answer must have.
    pub answers: Vec<IpAddr>,
    /// Whether the question goes over TCP.
    pub tcp: bool,
}

impl Default for DnsProbe {
    fn default() -> Self {
        Self {
            name: String::from("."),
            record_type: String::from("SOA"),
            rcodes: vec![0],
            answers: Vec::new(),
            tcp: false,
        }
    }
}

/// A question to the gRPC health service; only `SERVING` passes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrpcProbe {
    /// Name of the service; empty for the whole server.
    pub service: String,
    /// TLS; `None` for HTTP/2 by prior knowledge.
    pub tls: Option<TlsProbe>,
}

/// A program, without a shell.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExecProbe {
    /// Absolute path of the program, and its arguments.
    pub command: Vec<String>,
    /// Source of a dynamic weight.
    pub weight_from: WeightFrom,
}

/// Source of the weight that a program gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum WeightFrom {
    /// No dynamic weight: only exit code 0 passes.
    #[default]
    None,
    /// keepalived's: 0 passes, 1 fails, 2 to 255 pass with the weight code - 2.
    ExitCode,
    /// The first line of its output, as of [`AgentProbe`].
    Stdout,
}

/// HAProxy's agent check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgentProbe {
    /// Bytes to send before the line is read.
    pub send: Option<Vec<u8>>,
}

/// A number in a file: negative is down, all else is up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileProbe {
    /// Absolute path.
    pub path: String,
    /// Factor of the number in the weight; 0 leaves the weight alone.
    pub weight: i32,
}

/// Rules about the health of all backends of a load balancer together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HealthPolicy {
    /// State of a backend that no probe has judged yet.
    pub initial_state: InitialState,
    /// Action for a backend that is down.
    pub on_failure: OnFailure,
    /// Weight of healthy backends below which the load balancer has no quorum; at least 1.
    pub quorum: u32,
    /// Quorum is gained at `quorum + hysteresis` and lost below `quorum - hysteresis`; less than
    /// `quorum`.
    pub hysteresis: u32,
    /// Share of the configured weight, in percent, below which failing backends keep their weight.
    pub minimum_healthy_percent: u8,
    /// Time over which a backend that came up reaches its weight; zero for at once.
    pub slow_start: Duration,
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            initial_state: InitialState::Probe,
            on_failure: OnFailure::Quiesce,
            quorum: 1,
            hysteresis: 0,
            minimum_healthy_percent: 0,
            slow_start: Duration::ZERO,
        }
    }
}

/// State of a backend that no probe has judged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InitialState {
    /// No new connections until a probe passes.
    Probe,
    /// Its full weight until a probe fails.
    Up,
}

/// Action for a backend that is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnFailure {
    /// Weight 0: its connections go on.
    Quiesce,
    /// It leaves the virtual server, and its connections break.
    Remove,
}
