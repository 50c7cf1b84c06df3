//! The few requests to etcd. (The crate `etcd-client` runs `protoc` when it is built; it has no
//! generated code in it.)

use std::collections::BTreeMap;
use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};

#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes,
    reason = "generated code"
)]
mod pb {
    tonic::include_proto!("etcdserverpb");
}

use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::request_op::Request as Operation;
use pb::{
    AuthenticateRequest, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

use super::export::User;

/// How many keys are read at once.
const PAGE: i64 = 1000;

/// How many operations a transaction has at most: etcd's own limit is 128 unless it is configured.
const MAX_OPERATIONS: usize = 100;

/// Keys and values as they are in etcd.
pub(super) type Values = BTreeMap<String, String>;

#[derive(Debug, Clone)]
pub(super) struct Client {
    kv: KvClient<Channel>,
    auth: AuthClient<Channel>,
    timeout: Duration,
    user: Option<User>,
    /// What shows that we have said the password.
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    pub(super) fn new(channel: Channel, timeout: Duration, user: Option<User>) -> Self {
        Self {
            kv: KvClient::new(channel.clone()),
            auth: AuthClient::new(channel),
            timeout,
            user,
            token: None,
        }
    }

    /// Says the password, if there is one.
    pub(super) async fn log_in(&mut self) -> Result<(), Status> {
        let Some(user) = self.user.clone() else {
            return Ok(());
        };
        self.token = None;
        let request = self.request(AuthenticateRequest {
            name: user.name,
            password: user.password,
        });
        let token = self.auth.authenticate(request).await?.into_inner().token;
        let mut token: MetadataValue<Ascii> = token
            .parse()
            .map_err(|_| Status::internal("etcd's token cannot be sent back"))?;
        token.set_sensitive(true);
        self.token = Some(token);
        Ok(())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    /// The key `root`, and all below it, as they were at one moment. Keys and values that are not
    /// text are not ours and left out.
    pub(super) async fn read(&mut self, root: &str) -> Result<Values, Status> {
        let mut values = Values::new();
        let alone = (root.as_bytes().to_vec(), Vec::new());
        // '0' is what comes after '/'.
        let below = (
            format!("{root}/").into_bytes(),
            format!("{root}0").into_bytes(),
        );
        let mut revision = 0;
        for (mut key, range_end) in [alone, below] {
            loop {
                let page = RangeRequest {
                    key: key.clone(),
                    range_end: range_end.clone(),
                    limit: PAGE,
                    revision,
                };
                let reply = self.kv.range(self.request(page)).await?.into_inner();
                if revision == 0 {
                    revision = reply.header.map_or(0, |header| header.revision);
                }
                let last = reply.kvs.last().map(|pair| pair.key.clone());
                values.extend(reply.kvs.into_iter().filter_map(|pair| {
                    let key = String::from_utf8(pair.key).ok()?;
                    Some((key, String::from_utf8_lossy(&pair.value).into_owned()))
                }));
                match last {
                    Some(last) if reply.more => key = [last, vec![0]].concat(),
                    _ => break,
                }
            }
        }
        Ok(values)
    }

    /// Turns `old` into `new`: in one transaction, or in several if it takes too many operations.
    /// What is new comes first.
    pub(super) async fn replace(&mut self, old: &Values, new: &Values) -> Result<usize, Status> {
        let operations = operations(old, new);
        for part in operations.chunks(MAX_OPERATIONS) {
            let transaction = TxnRequest {
                success: part.to_vec(),
            };
            self.kv.txn(self.request(transaction)).await?;
        }
        Ok(operations.len())
    }
}

fn operations(old: &Values, new: &Values) -> Vec<RequestOp> {
    let puts = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(*value));
    let puts = puts.map(|(key, value)| {
        Operation::RequestPut(PutRequest {
            key: key.clone().into_bytes(),
            value: value.clone().into_bytes(),
        })
    });
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let deletes = gone.map(|key| {
        Operation::RequestDeleteRange(DeleteRangeRequest {
            key: key.clone().into_bytes(),
        })
    });
    let operations = puts.chain(deletes);
    operations
        .map(|operation| RequestOp {
            request: Some(operation),
        })
        .collect()
}
