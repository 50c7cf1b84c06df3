// SPDX-License-Identifier: Apache-2.0

//! The stored objects.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_etcd::{Client, EtcdArgs, EtcdError, Name, Outcome, Pair, Prefix, Write};
use serde_json::{Value, json};

use crate::columns::columns;
use crate::reply::Reply;

/// A stored object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    /// Its version: the revision of its last change.
    pub(crate) version: i64,
    /// The object; a text if it is no JSON.
    pub(crate) value: Value,
}

impl From<Pair> for Stored {
    fn from(pair: Pair) -> Self {
        let text = || String::from_utf8_lossy(&pair.value).into_owned();
        let value = serde_json::from_slice(&pair.value);
        Self {
            version: pair.modified,
            value: value.unwrap_or_else(|_| Value::String(text())),
        }
    }
}

/// The store.
pub(crate) struct Store {
    client: Client,
    prefix: Prefix,
    members: usize,
}

impl Store {
    pub(crate) fn open(args: &EtcdArgs, timeout: Duration) -> anyhow::Result<Self> {
        args.validate()?;
        let connection = args.access().open()?;
        let members = connection.endpoints.len();
        Ok(Self {
            client: Client::new(connection.endpoints, connection.user.as_ref(), timeout),
            prefix: args.prefix()?,
            members,
        })
    }

    /// All objects. Keys of no object are left out.
    pub(crate) async fn read(&mut self) -> Result<BTreeMap<Name, Stored>, EtcdError> {
        let mut tried = 1;
        let listing = loop {
            match Box::pin(self.client.list(&self.prefix.objects())).await {
                Ok(listing) => break listing,
                Err(_) if tried < self.members => {
                    self.client.fail_over();
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        };
        let pairs = listing.pairs.into_iter();
        let objects = pairs.filter_map(|pair| {
            let name = self.prefix.name(&pair.key).ok()?;
            Some((name, pair.into()))
        });
        Ok(objects.collect())
    }

    /// The write of an object.
    pub(crate) fn to_write(&self, name: &Name, based_on: i64, value: Option<&Value>) -> Write {
        Write {
            key: self.prefix.key(name),
            based_on,
            value: value.map(ToString::to_string),
        }
    }

    /// Writes all at once, or nothing.
    pub(crate) async fn write(&mut self, writes: &[Write]) -> Result<Outcome, EtcdError> {
        self.client.write(writes).await
    }
}

/// Objects as `get` shows them: with their version, so that they can be edited and applied.
pub(crate) fn show(objects: &[(Name, Stored)], is_one: bool, is_wide: bool) -> Reply {
    let mut rows = vec![vec![
        "KIND".to_owned(),
        "NAME".to_owned(),
        "VERSION".to_owned(),
    ]];
    if is_wide {
        rows[0].push("LABELS".to_owned());
    }
    for (name, stored) in objects {
        let text = name.to_string();
        let (kind, name) = text.split_once(' ').unwrap_or(("", &text));
        let mut row = vec![kind.to_owned(), name.to_owned(), stored.version.to_string()];
        if is_wide {
            row.push(labels(&stored.value));
        }
        rows.push(row);
    }
    let mut values = objects.iter().map(|(_, stored)| versioned(stored));
    let value = match values.next() {
        Some(one) if is_one => one,
        first => first.into_iter().chain(values).collect(),
    };
    Reply::new(value, columns(&rows)).of_documents()
}

fn versioned(stored: &Stored) -> Value {
    let mut value = stored.value.clone();
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert(
            "resourceVersion".to_owned(),
            json!(stored.version.to_string()),
        );
    }
    value
}

fn labels(object: &Value) -> String {
    let labels = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    let labels =
        labels.map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
    labels.collect::<Vec<_>>().join(",")
}
