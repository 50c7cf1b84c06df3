// SPDX-License-Identifier: Apache-2.0

//! Answers queries from a shared zone.

use std::sync::Arc;
use std::time::Instant;

use hickory_proto::op::ResponseCode;

use crate::metrics::Metrics;
use crate::shared::SharedZone;
use crate::upstream::Upstream;
use crate::wire::{Rejected, Request};
use crate::zone::Answer;

/// Answers DNS messages. Clones answer from the same zone.
#[derive(Debug, Clone)]
pub struct Server {
    zone: Arc<SharedZone>,
    upstream: Option<Upstream>,
    metrics: Option<Metrics>,
}

impl Server {
    /// A server of a zone.
    #[must_use]
    pub fn new(zone: Arc<SharedZone>) -> Self {
        Self {
            zone,
            upstream: None,
            metrics: None,
        }
    }

    /// Follows aliases that lead outside of the zones.
    #[must_use]
    pub fn with_upstream(mut self, upstream: Upstream) -> Self {
        self.upstream = Some(upstream);
        self
    }

    /// Counts the answers of [`resolve`](Self::resolve).
    #[must_use]
    pub fn with_metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Returns `true` if the zone is synced: before that every answer is SERVFAIL.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.zone.read().is_synced()
    }

    /// The reply to a message, at most [`MAX_MESSAGE`](crate::MAX_MESSAGE) bytes long; none if the
    /// message is a reply itself, or too short to have an id.
    ///
    /// FORMERR if it cannot be read, NOTIMP for anything but a query, REFUSED for names outside of
    /// the zones, other classes than IN, and transfers; like CoreDNS.
    #[must_use]
    pub fn answer(&self, packet: &[u8]) -> Option<Vec<u8>> {
        match Request::parse(packet) {
            Ok(request) => Some(request.reply(self.direct(&request))),
            Err(Rejected(reply)) => reply,
        }
    }

    /// Like [`answer`](Self::answer), but follows aliases out of the zones if there is an upstream.
    pub async fn resolve(&self, packet: &[u8]) -> Option<Vec<u8>> {
        let begin = Instant::now();
        let (kind, code, reply) = match Request::parse(packet) {
            Ok(request) => {
                let kind = request.query.query_type();
                let answer = self.direct(&request);
                let answer = match &self.upstream {
                    Some(upstream) => upstream.complete(answer, kind).await,
                    None => answer,
                };
                (Some(kind), answer.code, request.reply(answer))
            }
            Err(Rejected(reply)) => {
                let reply = reply?;
                let low = reply.get(3).map_or(0, |flags| flags & 0x0f);
                (None, ResponseCode::from(0, low), reply)
            }
        };
        if let Some(metrics) = &self.metrics {
            metrics.answered(kind, code, begin.elapsed());
        }
        Some(reply)
    }

    fn direct(&self, request: &Request) -> Answer {
        self.zone
            .read()
            .answer(request.query.name(), request.query.query_type())
    }
}
