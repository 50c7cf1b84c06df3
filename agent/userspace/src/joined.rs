// SPDX-License-Identifier: Apache-2.0

//! Two joined connections: what one receives, the other sends. A half that is closed stays closed alone.

use std::io;

use prometheus_client::metrics::counter::Counter;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::try_join;

use crate::limits::Place;
use crate::metrics::{Counted, Direction, Kind, Metrics};
use crate::tcp::reset;

/// Size of the buffer of each direction in the beginning, in bytes.
const BUFFER: usize = 16 * 1024;

/// Size up to which a buffer grows whose direction has more to read: fewer calls pass on as many bytes.
const LARGEST: usize = 64 * 1024;

/// Two joined connections. What is cut off is reset, so that it does not look complete.
pub(crate) struct Joined {
    client: TcpStream,
    server: TcpStream,
    to_endpoint: Counter,
    to_client: Counter,
    is_complete: bool,
    _counted: Counted,
    _place: Place,
}

impl Joined {
    pub(crate) fn new(
        client: TcpStream,
        server: TcpStream,
        metrics: &Metrics,
        place: Place,
    ) -> Self {
        Self {
            client,
            server,
            to_endpoint: metrics.bytes(Direction::to_endpoint),
            to_client: metrics.bytes(Direction::to_client),
            is_complete: false,
            _counted: metrics.count(Kind::TCP),
            _place: place,
        }
    }

    /// Copies until both halves have ended, or one has failed.
    pub(crate) async fn copy(mut self) {
        let (from_client, to_client) = self.client.split();
        let (from_server, to_server) = self.server.split();
        let copied = try_join!(
            copy(from_client, to_server, &self.to_endpoint),
            copy(from_server, to_client, &self.to_client),
        );
        self.is_complete = copied.is_ok();
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if !self.is_complete {
            reset(&self.client);
            reset(&self.server);
        }
    }
}

/// Copies one direction until it ends, and then ends it on the other side. Counts what was passed on.
async fn copy(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    passed_on: &Counter,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        passed_on.inc_by(u64::try_from(length).unwrap_or_default());
        if length == buffer.len() && length < LARGEST {
            buffer.resize(2 * length, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::limits::Limits;

    /// Two ends of a connection.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, connected) = tokio::join!(listener.accept(), connecting);
        (accepted.unwrap().0, connected.unwrap())
    }

    /// A client and a server that are joined by a task.
    async fn joined(metrics: &Metrics) -> (TcpStream, TcpStream, JoinHandle<()>) {
        let ((client, inner_client), (server, inner_server)) = (pair().await, pair().await);
        let local = Ipv4Addr::LOCALHOST.into();
        let place = Limits::of_process().enter(local, local).unwrap();
        let joined = Joined::new(inner_client, inner_server, metrics, place);
        (client, server, tokio::spawn(joined.copy()))
    }

    /// Bytes in an order that shows any loss, over several sizes of buffers.
    fn bytes(seed: usize) -> Vec<u8> {
        let length = 20 * LARGEST + seed;
        (0..length)
            .map(|i| u8::try_from((i + seed) % 251).unwrap())
            .collect()
    }

    #[tokio::test]
    async fn all_bytes_arrive_in_both_directions_and_each_half_ends_alone() {
        let metrics = Metrics::default();
        let (mut client, mut server, copying) = joined(&metrics).await;
        let (sent, mut received) = (bytes(1), Vec::new());
        let send = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, server.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent);
        assert_eq!(metrics.open_tcp(), 1, "the other half is open");

        let (sent, mut received) = (bytes(2), Vec::new());
        let send = async {
            server.write_all(&sent).await.unwrap();
            server.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, client.read_to_end(&mut received));
        read.unwrap();
        assert!(received == sent);
        copying.await.unwrap();
        assert_eq!(metrics.open_tcp(), 0);
        let counted = [Direction::to_endpoint, Direction::to_client];
        let counted = counted.map(|direction| metrics.bytes(direction).get());
        let passed_on = [bytes(1), bytes(2)].map(|bytes| u64::try_from(bytes.len()).unwrap());
        assert_eq!(counted, passed_on);
    }

    #[tokio::test]
    async fn what_is_cut_off_is_reset_on_both_sides() {
        let metrics = Metrics::default();
        let (mut client, mut server, copying) = joined(&metrics).await;
        client.write_all(b"half of").await.unwrap();
        let mut half = [0; 7];
        server.read_exact(&mut half).await.unwrap();
        copying.abort();
        for stream in [&mut client, &mut server] {
            let error = stream.read(&mut half).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        }
        // One side that is reset resets the other.
        let (client, mut server, copying) = joined(&metrics).await;
        reset(&client);
        drop(client);
        let error = server.read(&mut half).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        copying.await.unwrap();
        assert_eq!(metrics.open_tcp(), 0);
    }
}
