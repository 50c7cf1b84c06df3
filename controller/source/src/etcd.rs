// SPDX-License-Identifier: Apache-2.0

//! The source `etcd`: the objects of a fleet, one a key, read at one revision and watched from there.
//!
//! Values are read by the parser of files. A value that cannot be used is a problem of its key, and the last
//! good version of the object stays in force. While etcd is away, everything stays.

mod decode;
mod feed;
mod follow;
mod objects;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use portolan_etcd::{Client, EtcdError, Prefix};
use tokio_util::sync::CancellationToken;

use crate::Sink;
use crate::deletions::GuardConfig;
use crate::kubernetes::Stats;
use feed::Feed;
use follow::Follower;

pub use decode::{Decoded, decode};
pub use portolan_etcd::Connection;

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Options of [`watch`].
#[derive(Debug)]
pub struct Options {
    /// The way to etcd.
    pub connection: Connection,
    /// The beginning of all keys.
    pub prefix: Prefix,
    /// The cluster's name.
    pub cluster: Arc<str>,
    /// The deletion guard's limits.
    pub guard: GuardConfig,
    /// Counters, the last contact, and the held deletions.
    pub stats: Arc<Stats>,
}

/// Watches the objects until `token` is cancelled or the sink's reader is gone. TLS files are not followed.
pub async fn watch(options: Options, sink: Sink, token: CancellationToken) {
    let Options {
        connection,
        prefix,
        cluster,
        guard,
        stats,
    } = options;
    let client = Client::new(connection.endpoints, connection.user.as_ref(), TIMEOUT);
    let feed = Feed::new(prefix.clone(), cluster, guard, sink, Arc::clone(&stats));
    let follower = Follower::new(client, &prefix, feed, stats);
    // Ends early only with the sink's reader, whose owner deals with its end.
    let _ = token.run_until_cancelled(Box::pin(follower.run())).await;
}

/// The versions of Services, EndpointSlices and Nodes that a store has reached: all are its revision.
///
/// # Errors
/// etcd cannot be asked.
pub async fn newest_versions(
    connection: &Connection,
    prefix: &Prefix,
) -> Result<Vec<u64>, EtcdError> {
    let (endpoints, user) = (connection.endpoints.clone(), connection.user.as_ref());
    let members = endpoints.len();
    let mut client = Client::new(endpoints, user, TIMEOUT);
    let mut tried = 0;
    loop {
        tried += 1;
        match client.revision(&prefix.objects()).await {
            Ok(revision) => return Ok(vec![u64::try_from(revision).unwrap_or_default(); 3]),
            Err(_) if tried < members => client.fail_over(),
            Err(error) => return Err(error),
        }
    }
}
