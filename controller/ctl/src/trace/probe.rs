// SPDX-License-Identifier: Apache-2.0

//! One connection from this host, and what the kernel counts of it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use portolan_model::trace::{Difference, Outcome, Trace};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The end of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Probed {
    /// A connection, or a datagram that came back.
    Answered,
    /// An immediate error.
    Refused,
    /// Neither.
    Silent,
}

/// Sends one probe, and waits at most [`PATIENCE`] for its end.
pub(super) async fn probe(to: SocketAddr, is_udp: bool) -> anyhow::Result<Probed> {
    let ended = match is_udp {
        false => timeout(PATIENCE, async { TcpStream::connect(to).await.map(drop) }).await,
        true => timeout(PATIENCE, datagram(to)).await,
    };
    match ended {
        Err(_) => Ok(Probed::Silent),
        Ok(ended) => end(ended).with_context(|| format!("probe of {to}")),
    }
}

fn end(ended: std::io::Result<()>) -> std::io::Result<Probed> {
    let Err(error) = ended else {
        return Ok(Probed::Answered);
    };
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable => Ok(Probed::Refused),
        // A datagram that rules drop on its way out of this host is not permitted.
        ErrorKind::TimedOut | ErrorKind::PermissionDenied => Ok(Probed::Silent),
        _ => Err(error),
    }
}

async fn datagram(to: SocketAddr) -> std::io::Result<()> {
    let any: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(to).await?;
    socket.send(b"portolan").await?;
    let mut buffer = [0; 64];
    socket.recv(&mut buffer).await.map(drop)
}

/// Returns `true` if the kernel counts connections of the real servers.
pub(super) fn has_counters(trace: &Trace) -> bool {
    !counted(trace).is_empty()
}

/// Returns `true` if a counter has risen.
pub(super) fn has_risen(before: &Trace, after: &Trace) -> bool {
    !rises(before, after).is_empty()
}

fn counted(trace: &Trace) -> BTreeMap<SocketAddr, u64> {
    let chosen = trace.found.outcome.chosen();
    chosen
        .filter_map(|server| Some((server.address, server.connections?)))
        .collect()
}

/// The real servers whose counters have risen, and by how much.
fn rises(before: &Trace, after: &Trace) -> Vec<String> {
    let before = counted(before);
    let rises = counted(after).into_iter().filter_map(|(address, now)| {
        let more = now.checked_sub(*before.get(&address)?)?;
        (more > 0).then(|| format!("{address} +{more}"))
    });
    rises.collect()
}

/// Adds what a probe showed. `after` is the agent's answer after it.
pub(super) fn compare(trace: &mut Trace, after: &Trace, end: Probed) {
    let is_counted = has_counters(trace);
    let rises = rises(trace, after);
    let text = match end {
        Probed::Answered => "answered",
        Probed::Refused => "refused",
        Probed::Silent => "no answer",
    };
    trace.notes.push(match (is_counted, rises.is_empty()) {
        (false, _) => format!("probe: {text}"),
        (true, true) => format!("probe: {text}; no real server's counter of connections rose"),
        (true, false) => format!("probe: {text}; connections of {}", rises.join(", ")),
    });
    let is_as_found = match trace.found.outcome {
        // A real server that is there may refuse, and one of UDP need not answer: the counters tell.
        Outcome::Forwarded { .. } if !is_counted => end != Probed::Silent,
        Outcome::Forwarded { .. } => !rises.is_empty(),
        Outcome::Dropped { .. } => end == Probed::Silent,
        Outcome::Refused { .. } => end == Probed::Refused,
        Outcome::Passes { .. } => true,
    };
    if !is_as_found {
        trace.differences.push(Difference {
            place: "the probe".to_owned(),
            wanted: trace.found.outcome.to_string(),
            found: match rises.is_empty() && is_counted {
                true => format!("{text}; counted for no real server"),
                false => text.to_owned(),
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;
    use portolan_model::trace::{Origin, Packet, Server, Way};
    use tokio::net::TcpListener;

    use super::*;

    fn trace(outcome: Outcome) -> Trace {
        let way = Way {
            steps: Vec::new(),
            outcome,
        };
        Trace {
            node: "a".to_owned(),
            revision: 1,
            dataplane: "ipvs".to_owned(),
            packet: Packet {
                origin: Origin::Node,
                source: [10, 0, 0, 1].into(),
                destination: ([10, 96, 0, 1], 80).into(),
                protocol: Protocol::Tcp,
            },
            record: None,
            wanted: way.clone(),
            found: way,
            differences: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn forwarded(connections: Option<u64>) -> Trace {
        let server = Server {
            address: ([10, 244, 0, 1], 80).into(),
            weight: 1,
            masquerade: true,
            source_by: String::new(),
            connections,
            why: String::new(),
        };
        trace(Outcome::Forwarded {
            by: "a".to_owned(),
            servers: vec![server],
        })
    }

    fn refused() -> Trace {
        trace(Outcome::Refused { by: "a".to_owned() })
    }

    #[test]
    fn a_probe_ends_as_the_way_or_is_a_difference() {
        use Probed::{Answered, Refused, Silent};
        let dropped = || trace(Outcome::Dropped { by: "a".to_owned() });
        for (before, after, end, is_good) in [
            (forwarded(Some(3)), forwarded(Some(4)), Refused, true),
            (forwarded(Some(3)), forwarded(Some(3)), Answered, false),
            (forwarded(None), forwarded(None), Answered, true),
            (forwarded(None), forwarded(None), Silent, false),
            (refused(), refused(), Refused, true),
            (refused(), refused(), Answered, false),
            (dropped(), dropped(), Silent, true),
            (dropped(), dropped(), Refused, false),
        ] {
            let mut trace = before;
            compare(&mut trace, &after, end);
            assert_eq!(trace.differences.is_empty(), is_good, "{end:?}: {trace:#?}");
        }
        let mut trace = forwarded(Some(3));
        compare(&mut trace, &forwarded(Some(5)), Answered);
        assert_eq!(
            trace.notes,
            ["probe: answered; connections of 10.244.0.1:80 +2"]
        );
    }

    #[test]
    fn a_datagram_that_is_dropped_on_its_way_out_has_no_answer() {
        let ended = |kind: ErrorKind| end(Err(kind.into())).map_err(|error| error.kind());
        assert_eq!(ended(ErrorKind::PermissionDenied), Ok(Probed::Silent));
        assert_eq!(ended(ErrorKind::ConnectionRefused), Ok(Probed::Refused));
        assert_eq!(ended(ErrorKind::AddrInUse), Err(ErrorKind::AddrInUse));
    }

    #[tokio::test]
    async fn connections_and_datagrams_are_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        assert_eq!(probe(open, false).await.unwrap(), Probed::Answered);
        drop(listener);
        assert_eq!(probe(open, false).await.unwrap(), Probed::Refused);
        let echo = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = echo.local_addr().unwrap();
        let answer = tokio::spawn(async move {
            let mut buffer = [0; 64];
            let (length, from) = echo.recv_from(&mut buffer).await.unwrap();
            echo.send_to(&buffer[..length], from).await.unwrap();
        });
        assert_eq!(probe(to, true).await.unwrap(), Probed::Answered);
        answer.await.unwrap();
        assert_eq!(probe(to, true).await.unwrap(), Probed::Refused);
    }
}
