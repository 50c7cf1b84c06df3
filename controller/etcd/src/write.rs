// SPDX-License-Identifier: Apache-2.0

//! Writes by compare-and-swap.

use etcd_client::{Compare, CompareOp, Txn, TxnOp, TxnOpResponse};

use crate::client::{Client, Pair, within};
use crate::error::EtcdError;

/// Most keys of one transaction: etcd's own limit unless it is configured.
pub const MAX_OPERATIONS: usize = 128;
/// Most bytes of values in one transaction of several keys: etcd takes requests of 1.5 MiB unless it is configured, and
/// keys and comparisons are part of them.
pub const MAX_BYTES: usize = 1 << 20;

/// A write to one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// The revision of the key's last change that the write is based on; 0 if the key must not exist.
    pub based_on: i64,
    /// The new value; `None` to delete the key.
    pub value: Option<String>,
}

/// The outcome of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All is written, at this revision.
    Written(i64),
    /// Nothing is written: some key has changed since. The keys as they are now, in the order of the writes;
    /// `None` for those that do not exist.
    Conflict(Vec<Option<Pair>>),
}

impl Client {
    /// Writes all keys at once if none has changed since: at most [`MAX_OPERATIONS`].
    ///
    /// # Errors
    /// etcd cannot be asked. The keys may be written all the same.
    pub async fn write(&mut self, writes: &[Write]) -> Result<Outcome, EtcdError> {
        let timeout = self.timeout;
        let compare = |write: &Write| {
            Compare::mod_revision(write.key.as_str(), CompareOp::Equal, write.based_on)
        };
        let operation = |write: &Write| match &write.value {
            Some(value) => TxnOp::put(write.key.as_str(), value.as_str(), None),
            None => TxnOp::delete(write.key.as_str(), None),
        };
        let read = |write: &Write| TxnOp::get(write.key.as_str(), None);
        let transaction = Txn::new()
            .when(writes.iter().map(compare).collect::<Vec<_>>())
            .and_then(writes.iter().map(operation).collect::<Vec<_>>())
            .or_else(writes.iter().map(read).collect::<Vec<_>>());
        let mut kv = self.session().await?.kv_client();
        let answer = within(timeout, kv.txn(transaction)).await?;
        if answer.succeeded() {
            let header = answer.header().ok_or(EtcdError::NoRevision)?;
            return Ok(Outcome::Written(header.revision()));
        }
        let found = answer
            .op_responses()
            .into_iter()
            .map(|answer| match answer {
                TxnOpResponse::Get(mut found) => {
                    found.take_kvs().into_iter().next().map(Pair::from)
                }
                _ => None,
            });
        Ok(Outcome::Conflict(found.collect()))
    }
}
