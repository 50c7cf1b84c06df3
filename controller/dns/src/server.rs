//! Answers queries from a shared zone.

use std::sync::Arc;

use crate::shared::SharedZone;
use crate::wire::{Rejected, Request};

/// Answers DNS messages. Clones answer from the same zone.
#[derive(Debug, Clone)]
pub struct Server {
    zone: Arc<SharedZone>,
}

impl Server {
    /// A server of a zone.
    #[must_use]
    pub fn new(zone: Arc<SharedZone>) -> Self {
        Self { zone }
    }

    /// Whether it knows enough to answer with anything but SERVFAIL.
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
            Ok(request) => {
                let query = &request.query;
                let answer = self.zone.read().answer(query.name(), query.query_type());
                Some(request.reply(answer))
            }
            Err(Rejected(reply)) => reply,
        }
    }
}
