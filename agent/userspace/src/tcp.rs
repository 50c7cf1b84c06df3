// SPDX-License-Identifier: Apache-2.0

//! TCP: connections are accepted, dialled to an endpoint, and joined.

use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::joined::Joined;
use crate::limits::Place;
use crate::service::Lease;
use crate::shared::{Client, Shared};
use crate::way::{Choice, Way};

/// Times for dials, each to the next endpoint.
const DIALS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Pause after the kernel could not accept.
const AGAIN: Duration = Duration::from_millis(100);

/// Time of silence after which a peer is asked whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Accepts the connections of a way for ever.
pub(crate) async fn serve(listener: TcpListener, way: Arc<Way>, shared: Shared) {
    loop {
        shared.limits.room().await;
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, record = way.name(), "cannot accept");
                sleep(AGAIN).await;
                continue;
            }
        };
        let Ok(local) = stream.local_addr() else {
            continue;
        };
        let client = Client::of(peer, local);
        let Ok(place) = shared.limits.enter(peer.ip(), local.ip()) else {
            reset(&stream);
            continue;
        };
        let (way, shared) = (Arc::clone(&way), shared.clone());
        tokio::spawn(async move {
            let ending = shared.ending.clone();
            ending
                .run_until_cancelled(connection(stream, client, &way, &shared, place))
                .await;
        });
    }
}

/// Serves one connection.
async fn connection(stream: TcpStream, client: Client, way: &Way, shared: &Shared, place: Place) {
    match dial(client, way, shared).await {
        Dialled::To(server, lease) => join(stream, server, lease, shared, place).await,
        // An orderly end would look like an empty answer, if the client has sent nothing yet.
        Dialled::Nowhere(_) => reset(&stream),
    }
}

/// The reason why a connection leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nowhere {
    /// It is to be dropped: the client is not permitted, or only other nodes have endpoints.
    Drop,
    /// It is to be refused: nobody has an endpoint.
    Refuse,
    /// No endpoint could be reached.
    Unreachable,
}

/// A connection to an endpoint, or the reason why there is none.
#[derive(Debug)]
pub(crate) enum Dialled {
    To(TcpStream, Lease),
    Nowhere(Nowhere),
}

/// Connects to an endpoint for a client.
pub(crate) async fn dial(client: Client, way: &Way, shared: &Shared) -> Dialled {
    if !way.permits(&client.addresses()) {
        return Dialled::Nowhere(Nowhere::Drop);
    }
    let mut tried = Vec::new();
    for limit in DIALS {
        let (endpoint, lease) = match way.choose(client.identity, &tried) {
            Choice::To(endpoint, lease) => (endpoint, lease),
            Choice::Drop => return Dialled::Nowhere(Nowhere::Drop),
            Choice::Refuse => return Dialled::Nowhere(Nowhere::Refuse),
        };
        let error = match timeout(limit, TcpStream::connect(endpoint)).await {
            Ok(Ok(stream)) => {
                way.reached(endpoint);
                return Dialled::To(stream, lease);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {limit:?}"),
        };
        tracing::debug!(%endpoint, error, record = way.name(), "endpoint cannot be reached");
        shared.metrics.dial_failures.inc();
        way.failed(client.identity, endpoint);
        tried.push(endpoint);
    }
    Dialled::Nowhere(Nowhere::Unreachable)
}

/// Joins two connections until both halves have ended, or the endpoint's time has passed.
pub(crate) async fn join(
    client: TcpStream,
    server: TcpStream,
    mut lease: Lease,
    shared: &Shared,
    place: Place,
) {
    for stream in [&client, &server] {
        // They make connections faster, and notice dead peers; both go without too.
        let _ = stream.set_nodelay(true);
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
        let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
    }
    let joined = Joined::new(client, server, &shared.metrics, place);
    // A task of its own, so that a packet wakes nothing else. It ends with this future.
    let mut copying = AbortOnDropHandle::new(tokio::spawn(joined.copy()));
    tokio::select! {
        _ = &mut copying => {}
        () = lease.ended() => {}
    }
}

/// Lets the close of a connection be a reset.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
