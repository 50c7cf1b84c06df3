// SPDX-License-Identifier: Apache-2.0

//! Reads and writes of keys, at one of several etcd endpoints.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, GetOptions, Txn, TxnOp};
use tonic::transport::Channel;

use super::export::User;

/// Keys per read.
const PAGE: i64 = 1000;

/// Operations per transaction: etcd's own limit is 128 unless it is configured.
const MAX_OPERATIONS: usize = 100;

/// Keys and values as they are in etcd.
pub(super) type Values = BTreeMap<String, String>;

/// The reason for a failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum EtcdError {
    #[error(transparent)]
    Request(#[from] etcd_client::Error),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

/// A client of one endpoint at a time. Keeps its connection and its token until an error.
pub(super) struct Etcd {
    /// Not empty.
    endpoints: Vec<Channel>,
    current: usize,
    client: Option<Client>,
    timeout: Duration,
    options: ConnectOptions,
}

impl Etcd {
    pub(super) fn new(endpoints: Vec<Channel>, timeout: Duration, user: Option<&User>) -> Self {
        // A member without a leader says so instead of waiting for one.
        let options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        let options = match user {
            Some(user) => options.with_user(&user.name, &user.password),
            None => options,
        };
        Self {
            endpoints,
            current: 0,
            client: None,
            timeout,
            options,
        }
    }

    /// Makes the next request go to the next endpoint, with a new token. Returns whether that is
    /// the first endpoint again.
    pub(super) fn fail_over(&mut self) -> bool {
        self.client = None;
        self.current = (self.current + 1) % self.endpoints.len().max(1);
        self.current == 0
    }

    /// Logs in first if there is no client yet.
    async fn client(&mut self) -> Result<&mut Client, EtcdError> {
        if self.client.is_none() {
            let channel = etcd_client::Channel::Tonic(self.endpoints[self.current].clone());
            let client = Client::from_channel(channel, Some(self.options.clone()));
            self.client = Some(within(self.timeout, client).await?);
        }
        self.client
            .as_mut()
            .ok_or_else(|| EtcdError::Request(etcd_client::Error::Internal("no client".to_owned())))
    }

    /// The key `root` and all keys below it, as of one revision. Keys that are not UTF-8 are
    /// foreign and left out.
    pub(super) async fn read(&mut self, root: &str) -> Result<Values, EtcdError> {
        let mut values = Values::new();
        let exact = (root.as_bytes().to_vec(), Vec::new());
        // '0' is the character after '/'.
        let below = (
            format!("{root}/").into_bytes(),
            format!("{root}0").into_bytes(),
        );
        let timeout = self.timeout;
        let client = self.client().await?;
        let mut revision = 0;
        for (mut key, end) in [exact, below] {
            loop {
                let options = GetOptions::new()
                    .with_range(end.clone())
                    .with_limit(PAGE)
                    .with_revision(revision);
                let mut page = within(timeout, client.get(key, Some(options))).await?;
                if revision == 0 {
                    revision = page.header().map_or(0, |header| header.revision());
                }
                let has_more = page.more();
                let pairs = page.take_kvs();
                let last = pairs.last().map(|pair| pair.key().to_vec());
                values.extend(pairs.into_iter().filter_map(|pair| {
                    let (key, value) = pair.into_key_value();
                    let key = String::from_utf8(key).ok()?;
                    Some((key, String::from_utf8_lossy(&value).into_owned()))
                }));
                match last {
                    Some(last) if has_more => key = [last, vec![0]].concat(),
                    _ => break,
                }
            }
        }
        Ok(values)
    }

    /// Turns `old` into `new`: in one transaction, or in several if it takes too many operations.
    /// Additions come before deletions.
    pub(super) async fn replace(&mut self, old: &Values, new: &Values) -> Result<usize, EtcdError> {
        let operations = operations(old, new);
        let timeout = self.timeout;
        let client = self.client().await?;
        for chunk in operations.chunks(MAX_OPERATIONS) {
            within(timeout, client.txn(Txn::new().and_then(chunk))).await?;
        }
        Ok(operations.len())
    }
}

async fn within<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, EtcdError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(EtcdError::Timeout(timeout)),
    }
}

fn operations(old: &Values, new: &Values) -> Vec<TxnOp> {
    let changed = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(*value));
    let puts = changed.map(|(key, value)| TxnOp::put(key.as_str(), value.as_str(), None));
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let deletes = gone.map(|key| TxnOp::delete(key.as_str(), None));
    puts.chain(deletes).collect()
}
