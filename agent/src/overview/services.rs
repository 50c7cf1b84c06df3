// SPDX-License-Identifier: Apache-2.0

//! Services of this node by their use, as IPVS counts it: what `portolanctl top` shows.
//!
//! Nothing is counted or read unless somebody asks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use portolan_dataplane::{DataplaneError, UsageOf, read_usage};
use portolan_model::RecordKey;
use portolan_model::ipvs::VirtualServerKey;
use serde::Serialize;
use serde_json::{Value, json};

use super::Usage;
use super::meter::{Meter, ReadingError, Readings};
use crate::status::Status;

/// Services of an answer, unless the question says otherwise, and at most.
const LIMIT: usize = 50;
const MAX_LIMIT: usize = 1000;

/// Answers requests for the use of Services.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    status: Status,
    meter: Meter,
}

/// The order of Services: the greatest first, equal ones by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum By {
    /// New connections in a second.
    #[default]
    Connections,
    /// Bytes in a second, both ways.
    Bytes,
    /// Established connections.
    Active,
}

/// The Services of a node.
#[derive(Debug, PartialEq, Serialize)]
struct List {
    /// Revision of the table in force.
    revision: u64,
    /// The first ones in the order that was asked for.
    services: Vec<Service>,
    /// Number of the Service ports that are left out.
    omitted: usize,
}

/// One Service port.
#[derive(Debug, PartialEq, Serialize)]
struct Service {
    /// `namespace/service[:port]/PROTOCOL`.
    service: String,
    /// Sums of all real servers of all its virtual servers.
    #[serde(flatten)]
    usage: Usage,
}

/// Reason why there is no answer.
#[derive(Debug, thiserror::Error)]
enum ServicesError {
    /// A field of the question is wrong.
    #[error("{0}: expected {1}")]
    Question(&'static str, &'static str),
    /// Another dataplane counts nothing.
    #[error("only IPVS counts by Service, and this agent has programmed none")]
    NoIpvs,
    /// The kernel cannot be read.
    #[error("the kernel cannot be read: {0}")]
    Kernel(#[from] ReadingError),
}

impl Services {
    /// The Services of the kernel of this process.
    pub(crate) fn new(status: Status) -> Self {
        Self::with(status, read_usage)
    }

    fn with(
        status: Status,
        read: impl Fn(&[VirtualServerKey]) -> Result<UsageOf, DataplaneError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            status,
            meter: Meter::new(read),
        }
    }

    /// `GET /debug/services`, with `by=connections`, `bytes` or `active`, and `limit`.
    pub(crate) fn dumps(&self) -> Router {
        Router::new()
            .route("/services", get(services))
            .with_state(self.clone())
    }

    async fn list(&self, by: By, limit: usize) -> Result<List, ServicesError> {
        let (_, revision) = self.status.table_in_force().ok_or(ServicesError::NoIpvs)?;
        let records = self.status.virtual_servers();
        let records = records.ok_or(ServicesError::NoIpvs)?;
        let keys = records.keys().copied().collect();
        let readings = self.meter.readings(keys).await?;
        let mut services = by_service(&records, &readings);
        let omitted = services.len().saturating_sub(limit);
        services.sort_by(|a, b| greatest_first(by, &a.usage, &b.usage));
        services.truncate(limit);
        Ok(List {
            revision,
            services,
            omitted,
        })
    }
}

/// Sums by Service port, in the order of names.
fn by_service(
    records: &BTreeMap<VirtualServerKey, RecordKey>,
    readings: &Readings,
) -> Vec<Service> {
    let mut sums: BTreeMap<&RecordKey, Usage> = BTreeMap::new();
    for (key, record) in records {
        let sum = sums.entry(record).or_default();
        for usage in readings.of(key).values() {
            sum.add(usage);
        }
    }
    let services = sums.into_iter();
    services
        .map(|(record, usage)| Service {
            service: record.to_string(),
            usage,
        })
        .collect()
}

fn greatest_first(by: By, a: &Usage, b: &Usage) -> std::cmp::Ordering {
    let rates = |usage: &Usage| usage.rates.unwrap_or_default();
    let (of_a, of_b) = (rates(a), rates(b));
    let bytes = |rates: super::Rates| rates.bytes_in + rates.bytes_out;
    let by_active = || Reverse(a.active).cmp(&Reverse(b.active));
    match by {
        By::Active => by_active(),
        By::Connections => of_b
            .connections
            .total_cmp(&of_a.connections)
            .then_with(by_active),
        By::Bytes => bytes(of_b).total_cmp(&bytes(of_a)).then_with(by_active),
    }
}

fn question(query: &str) -> Result<(By, usize), ServicesError> {
    let (mut by, mut limit) = (By::default(), LIMIT);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "by" => {
                by = match &*value {
                    "connections" => By::Connections,
                    "bytes" => By::Bytes,
                    "active" => By::Active,
                    _ => {
                        return Err(ServicesError::Question(
                            "by",
                            "connections, bytes or active",
                        ));
                    }
                }
            }
            "limit" => {
                let number = value
                    .parse()
                    .ok()
                    .filter(|limit| (1..=MAX_LIMIT).contains(limit));
                limit = number.ok_or(ServicesError::Question("limit", "1 to 1000"))?;
            }
            _ => {}
        }
    }
    Ok((by, limit))
}

async fn services(
    State(services): State<Services>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, (StatusCode, Json<Value>)> {
    let answer = async {
        let (by, limit) = question(&query.unwrap_or_default())?;
        services.list(by, limit).await
    };
    answer.await.map(|list| Json(json!(list))).map_err(|error| {
        let status = match error {
            ServicesError::Question(..) => StatusCode::BAD_REQUEST,
            ServicesError::NoIpvs => StatusCode::NOT_FOUND,
            ServicesError::Kernel(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(json!({ "error": error.to_string() })))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use portolan_dataplane::FakeKernel;
    use portolan_model::{
        Destination, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record,
    };
    use portolan_plan::Config;
    use portolan_reconcile::Reconciler;

    use super::*;
    use crate::subscribe::Subscribed;

    /// A Service with two frontends and one endpoint.
    fn record(name: &str, last: u8) -> Record {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: name.into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let frontend = |kind, network| {
            let address = FrontendAddress::Vip([network, 96, 0, last].into());
            Frontend::new(kind, address, 80)
        };
        Record {
            frontends: vec![
                frontend(FrontendKind::ClusterIp, 10),
                frontend(FrontendKind::ExternalIp, 198),
            ],
            destinations: vec![Destination::new(([10, 244, 0, last], 8080).into())],
            ..Record::new(key)
        }
    }

    /// A status after three Services were programmed.
    async fn status() -> Status {
        let records = [record("a", 1), record("b", 2), record("c", 3)];
        let records = records.map(|record| (record.key.clone(), Arc::new(record)));
        let table = Arc::new(NodeTable {
            records: records.into_iter().collect(),
            ..NodeTable::default()
        });
        let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
        let outcome = reconciler.reconcile(&table).await.unwrap();
        let status = Status::default();
        let target = Subscribed::new((0, 7), table);
        status.update(&target, Some(reconciler.desired().clone()), &outcome);
        status
    }

    /// Counters that grow by 10 with each reading and each unit of the address's last number.
    fn counting(keys: &[VirtualServerKey], readings: &AtomicU64) -> UsageOf {
        let reading = readings.fetch_add(1, Ordering::Relaxed);
        let of = |key: &VirtualServerKey| {
            let socket = key.socket().unwrap();
            let last = match socket.ip() {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            };
            let mut usage = portolan_dataplane::Usage {
                total_connections: u64::from(last) * 10 * reading,
                bytes_in: u64::from(4 - last) * 1000 * reading,
                ..portolan_dataplane::Usage::default()
            };
            usage.connections.active = u32::from(last == 2) * 5;
            (*key, [(([10, 244, 0, last], 8080).into(), usage)].into())
        };
        keys.iter().map(of).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn services_are_summed_and_the_greatest_come_first() {
        let readings = AtomicU64::new(0);
        let services = Services::with(status().await, move |keys| Ok(counting(keys, &readings)));
        let names = |list: &List| {
            let names = list.services.iter().map(|s| s.service.clone());
            names.collect::<Vec<_>>()
        };
        let list = services.list(By::Connections, 2).await.unwrap();
        assert_eq!(names(&list), ["default/c/TCP", "default/b/TCP"]);
        assert_eq!((list.revision, list.omitted), (7, 1));
        // Two virtual servers of 30 in two seconds.
        let rate = list.services[0].usage.rates.unwrap().connections;
        assert!((rate - 30.0).abs() < 0.1, "{rate}");
        let list = services.list(By::Bytes, 9).await.unwrap();
        assert_eq!(
            names(&list),
            ["default/a/TCP", "default/b/TCP", "default/c/TCP"]
        );
        let list = services.list(By::Active, 9).await.unwrap();
        assert_eq!(
            names(&list),
            ["default/b/TCP", "default/a/TCP", "default/c/TCP"]
        );
        assert_eq!(list.services[0].usage.active, 10);
    }

    #[tokio::test]
    async fn questions_without_an_answer_are_errors() {
        let services = Services::with(Status::default(), |_| Ok(UsageOf::new()));
        let error = services.list(By::Active, 1).await.unwrap_err().to_string();
        assert!(error.starts_with("only IPVS counts"), "{error}");
        let failing = Services::with(
            status().await,
            |_| Err(std::io::Error::other("gone").into()),
        );
        let error = failing.list(By::Active, 1).await.unwrap_err().to_string();
        assert_eq!(error, "the kernel cannot be read: gone");
        for (query, error) in [
            ("by=name", "by: expected connections, bytes or active"),
            ("limit=0", "limit: expected 1 to 1000"),
            ("limit=1001", "limit: expected 1 to 1000"),
        ] {
            assert_eq!(question(query).unwrap_err().to_string(), error);
        }
        assert_eq!(question("by=bytes&limit=1000").unwrap(), (By::Bytes, 1000));
    }
}
