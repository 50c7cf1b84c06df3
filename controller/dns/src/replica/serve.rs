//! The controller's side: streams a zone to agents.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::encode::{self, digest};
use super::pb::names_server::{Names, NamesServer};
use super::pb::{Frame, Item, WatchRequest};
use crate::input::Subject;
use crate::shared::{Dirty, SharedZone, Subscription};

/// How many items are in a frame at most.
const ITEMS: usize = 100;

/// How many frames wait for an agent that does not take them. What changes meanwhile is sent once,
/// as it is then.
const FRAMES: usize = 4;

/// The shortest time from one round of changes to the next, for each agent.
const INTERVAL: Duration = Duration::from_millis(100);

/// The service `portolan.dns.v1.Names`.
#[derive(Debug, Clone)]
pub struct NamesService {
    zone: Arc<SharedZone>,
    /// The digest of the zone at a serial: agents that come back together ask for the same one.
    digest: Arc<Mutex<Option<AtSerial>>>,
}

/// A serial, and the zone's digest then.
type AtSerial = (u32, [u8; 16]);

impl NamesService {
    /// The service for a tonic server.
    #[must_use]
    pub fn service(zone: Arc<SharedZone>) -> NamesServer<Self> {
        NamesServer::new(Self {
            zone,
            digest: Arc::default(),
        })
    }

    /// What an agent with this digest has to be told first.
    fn first(&self, known: &[u8]) -> Vec<Item> {
        let zone = self.zone.read();
        let serial = zone.serial();
        let mut cached = self.digest.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = match *cached {
            Some((at, digest)) if at == serial => digest,
            _ => digest(&zone),
        };
        *cached = Some((serial, digest));
        drop(cached);
        let mut items = Vec::new();
        if known != digest {
            items.extend(encode::everything(&zone));
        }
        items.push(encode::commit(serial));
        items
    }

    async fn stream(self, known: Vec<u8>, frames: mpsc::Sender<Result<Frame, Status>>) {
        tokio::select! {
            _ = self.run(known, &frames) => {}
            () = frames.closed() => {}
        }
    }

    /// Tells everything, and then what changes; `None` when the agent has gone.
    async fn run(
        &self,
        known: Vec<u8>,
        frames: &mpsc::Sender<Result<Frame, Status>>,
    ) -> Option<()> {
        let mut subscription = self.zone.subscribe("agent");
        self.synced(&mut subscription).await;
        let mut known = Some(known);
        loop {
            let dirty = subscription.changed().await;
            let items = match (known.take(), dirty) {
                (Some(known), _) => self.first(&known),
                (None, Dirty::All) => self.first(&[]),
                (None, Dirty::Some(subjects)) => self.changed(&subjects),
            };
            send(frames, items).await?;
            subscription.done();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn changed(&self, subjects: &BTreeSet<Subject>) -> Vec<Item> {
        let zone = self.zone.read();
        let items = subjects.iter();
        let items = items.filter_map(|one| encode::of_subject(&zone, one));
        items.chain([encode::commit(zone.serial())]).collect()
    }

    /// Before everything is known nothing is told.
    async fn synced(&self, subscription: &mut Subscription) {
        loop {
            let dirty = subscription.changed().await;
            if self.zone.read().is_synced() {
                subscription.put_back(&dirty);
                return;
            }
        }
    }
}

/// Sends items in frames; `None` if the agent has gone.
async fn send(frames: &mpsc::Sender<Result<Frame, Status>>, items: Vec<Item>) -> Option<()> {
    let mut items = items.into_iter().peekable();
    while items.peek().is_some() {
        let part = items.by_ref().take(ITEMS).collect();
        frames.send(Ok(Frame { items: part })).await.ok()?;
    }
    Some(())
}

#[tonic::async_trait]
impl Names for NamesService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Frame, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (sender, receiver) = mpsc::channel(FRAMES);
        tokio::spawn(self.clone().stream(request.into_inner().digest, sender));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
