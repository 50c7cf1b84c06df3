// SPDX-License-Identifier: Apache-2.0

//! Load of a DnsService, and its cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use portolan_dns::grpc::pb::DnsPacket;
use portolan_dns::grpc::pb::dns_service_client::DnsServiceClient;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// The number of concurrent queries.
const AT_ONCE: usize = 32;

/// The length of a clock tick in /proc, in milliseconds: the same on all usual architectures of
/// Linux.
const TICK_MS: u64 = 10;

/// A server under measurement.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    client: DnsServiceClient<Channel>,
    process: u32,
}

/// The cost of a number of answers.
#[derive(Debug, Clone)]
pub(crate) struct Cost {
    /// The server's processor time for one answer, user and system.
    pub(crate) cpu: Duration,
    /// Time from query to answer, sorted.
    pub(crate) waits: Vec<Duration>,
}

impl Target {
    pub(crate) fn new(port: u16, process: u32) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        let client = DnsServiceClient::new(endpoint.tcp_nodelay(true).connect_lazy());
        Ok(Self { client, process })
    }

    pub(crate) async fn ask(&mut self, packet: &[u8]) -> Result<Vec<u8>> {
        let msg = packet.to_vec();
        let answer = self.client.query(DnsPacket { msg }).await?;
        Ok(answer.into_inner().msg)
    }

    /// Sends `count` queries, [`AT_ONCE`] at a time.
    pub(crate) async fn load(&self, packets: &Arc<Vec<Vec<u8>>>, count: usize) -> Result<Cost> {
        let next = Arc::new(AtomicUsize::new(0));
        let before = self.cpu()?;
        let mut workers = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (mut target, packets) = (self.clone(), Arc::clone(packets));
            let next = Arc::clone(&next);
            workers.spawn(async move {
                let mut waits = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return anyhow::Ok(waits);
                    }
                    let begin = Instant::now();
                    target.ask(&packets[number % packets.len()]).await?;
                    waits.push(begin.elapsed());
                }
            });
        }
        let mut waits = Vec::with_capacity(count);
        while let Some(worker) = workers.join_next().await {
            waits.extend(worker??);
        }
        waits.sort();
        let used = self.cpu()? - before;
        let cpu = used / u32::try_from(count)?;
        Ok(Cost { cpu, waits })
    }

    /// The processor time of the server's process so far.
    fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process))?;
        let rest = stat.rsplit_once(')').context("/proc/PID/stat")?.1;
        let fields: Vec<_> = rest.split_whitespace().collect();
        let field = |index: usize| -> Result<u64> {
            Ok(fields.get(index).context("/proc/PID/stat")?.parse()?)
        };
        Ok(Duration::from_millis((field(11)? + field(12)?) * TICK_MS))
    }
}
