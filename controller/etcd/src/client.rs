// SPDX-License-Identifier: Apache-2.0

//! Reads and watches at one of several members.

use std::time::Duration;

use etcd_client::{
    Client as Session, ConnectOptions, EventType, GetOptions, KeyValue, WatchOptions, WatchStream,
};
use tonic::transport::Channel;

use crate::access::User;
use crate::error::EtcdError;
use crate::key::Range;

/// Keys per page of a read.
const PAGE: i64 = 500;
/// The largest answer. A page of larger ones is asked for again, smaller.
const MAX_ANSWER: usize = 64 << 20;

/// A key with its value and its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The revision of the key's creation.
    pub created: i64,
    /// The revision of its last change.
    pub modified: i64,
}

impl From<KeyValue> for Pair {
    fn from(pair: KeyValue) -> Self {
        let (created, modified) = (pair.create_revision(), pair.mod_revision());
        let (key, value) = pair.into_key_value();
        Self {
            key,
            value,
            created,
            modified,
        }
    }
}

/// All keys of a range as of one revision, in the order of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The revision.
    pub revision: i64,
    /// The keys.
    pub pairs: Vec<Pair>,
}

/// A client of one member at a time. Keeps its connection and its token until [`Self::fail_over`].
pub struct Client {
    endpoints: Vec<Channel>,
    current: usize,
    pub(crate) session: Option<Session>,
    pub(crate) timeout: Duration,
    options: ConnectOptions,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("endpoints", &self.endpoints.len())
            .field("current", &self.current)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of these members, whose requests take `timeout` at most.
    #[must_use]
    pub fn new(endpoints: Vec<Channel>, user: Option<&User>, timeout: Duration) -> Self {
        // A member without a leader says so instead of waiting for one.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        Self {
            endpoints,
            current: 0,
            session: None,
            timeout,
            options: match user {
                Some(user) => options.with_user(&user.name, &user.password),
                None => options,
            },
        }
    }

    /// Makes the next request go to the next member, with a new token.
    pub fn fail_over(&mut self) {
        self.session = None;
        self.current = (self.current + 1) % self.endpoints.len().max(1);
    }

    /// Logs in first if there is no session yet.
    pub(crate) async fn session(&mut self) -> Result<&mut Session, EtcdError> {
        if self.session.is_none() {
            let endpoint = self.endpoints.get(self.current).cloned();
            let endpoint = endpoint.ok_or_else(|| no_session("no endpoint"))?;
            let channel = etcd_client::Channel::Tonic(endpoint);
            let session = Session::from_channel(channel, Some(self.options.clone()));
            self.session = Some(within(self.timeout, session).await?);
        }
        self.session
            .as_mut()
            .ok_or_else(|| no_session("no session"))
    }

    /// All keys of a range as of one revision, in pages.
    ///
    /// # Errors
    /// etcd cannot be asked, or has compacted the revision meanwhile.
    pub async fn list(&mut self, range: &Range) -> Result<Listing, EtcdError> {
        let timeout = self.timeout;
        let session = self.session().await?;
        let mut kv = session.kv_client().max_decoding_message_size(MAX_ANSWER);
        let mut listing = Listing {
            revision: 0,
            pairs: Vec::new(),
        };
        let (mut key, mut page) = (range.start.clone(), PAGE);
        loop {
            let options = GetOptions::new()
                .with_range(range.end.clone())
                .with_limit(page)
                .with_revision(listing.revision);
            let answer = within(timeout, kv.get(key.clone(), Some(options))).await;
            let mut answer = match answer {
                Err(error) if page > 1 && error.is_too_large() => {
                    page = (page / 8).max(1);
                    continue;
                }
                answer => answer?,
            };
            if listing.revision == 0 {
                let header = answer.header().ok_or(EtcdError::NoRevision)?;
                listing.revision = header.revision();
            }
            let has_more = answer.more();
            listing
                .pairs
                .extend(answer.take_kvs().into_iter().map(Pair::from));
            match listing.pairs.last() {
                Some(last) if has_more => key = [&last.key[..], &[0]].concat(),
                _ => return Ok(listing),
            }
        }
    }

    /// The revision of the whole store.
    ///
    /// # Errors
    /// etcd cannot be asked.
    pub async fn revision(&mut self, range: &Range) -> Result<i64, EtcdError> {
        let timeout = self.timeout;
        let mut kv = self.session().await?.kv_client();
        let options = GetOptions::new()
            .with_range(range.end.clone())
            .with_count_only();
        let answer = within(timeout, kv.get(range.start.clone(), Some(options))).await?;
        let header = answer.header().ok_or(EtcdError::NoRevision)?;
        Ok(header.revision())
    }

    /// Watches a range for the changes after a revision.
    ///
    /// # Errors
    /// etcd cannot be asked. A revision that is compacted shows with the first news.
    pub async fn watch(&mut self, range: &Range, after: i64) -> Result<Watch, EtcdError> {
        let timeout = self.timeout;
        let session = self.session().await?;
        let mut watches = session.watch_client().max_decoding_message_size(MAX_ANSWER);
        let options = WatchOptions::new()
            .with_range(range.end.clone())
            .with_start_revision(after + 1)
            .with_progress_notify();
        let watch = watches.watch(range.start.clone(), Some(options));
        let stream = within(timeout, watch).await?;
        Ok(Watch {
            stream,
            reached: after,
        })
    }
}

/// The changes of a range, in the order of their revisions.
#[derive(Debug)]
pub struct Watch {
    stream: WatchStream,
    /// All changes up to this revision were delivered.
    reached: i64,
}

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key has this value now.
    Put(Pair),
    /// The key is gone.
    Delete(Vec<u8>),
}

/// Message of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The changes; none for a sign of life.
    pub changes: Vec<Change>,
    /// All changes up to this revision were delivered with these.
    pub revision: i64,
}

impl Watch {
    /// The next news. Cancelled, it loses none.
    ///
    /// # Errors
    /// The watch has ended, and why.
    pub async fn next(&mut self) -> Result<News, EtcdError> {
        loop {
            let answer = self.stream.message().await?.ok_or(EtcdError::Ended)?;
            if answer.compact_revision() > 0 {
                return Err(EtcdError::Compacted(answer.compact_revision()));
            }
            if answer.canceled() {
                return Err(EtcdError::Cancelled(answer.cancel_reason().to_owned()));
            }
            let store = answer.header().ok_or(EtcdError::NoRevision)?.revision();
            if store < self.reached {
                let (ours, theirs) = (self.reached, store);
                return Err(EtcdError::WentBack { ours, theirs });
            }
            if answer.created() {
                // The changes up to the store's revision are still to come.
                continue;
            }
            let changes: Vec<_> = answer.events().iter().filter_map(change).collect();
            // An answer with changes may be older than the store.
            let of_changes = answer.events().iter().filter_map(|event| event.kv());
            let newest = of_changes.map(KeyValue::mod_revision).max();
            self.reached = newest.unwrap_or(store).max(self.reached);
            return Ok(News {
                changes,
                revision: self.reached,
            });
        }
    }

    /// Asks for a sign of life, which comes as news without changes.
    ///
    /// # Errors
    /// The watch has ended.
    pub async fn ask(&mut self) -> Result<(), EtcdError> {
        Ok(self.stream.request_progress().await?)
    }
}

fn change(event: &etcd_client::Event) -> Option<Change> {
    let pair = event.kv()?.clone();
    Some(match event.event_type() {
        EventType::Put => Change::Put(pair.into()),
        EventType::Delete => Change::Delete(pair.into_key_value().0),
    })
}

fn no_session(why: &str) -> EtcdError {
    EtcdError::Request(etcd_client::Error::Internal(why.to_owned()))
}

pub(crate) async fn within<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(EtcdError::Timeout(timeout)),
    }
}
