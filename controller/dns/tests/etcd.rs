//! The exporter against a real etcd. Says SKIP where there is none, which is a
//! failure in CI.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use portolan_dns::skydns::{ExportConfig, Layout, export};
use portolan_dns::{Change, Kind, Service, ServiceKey, SharedZone, Zone, ZoneConfig};
use portolan_e2e::lane::missing;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

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

use pb::kv_client::KvClient;
use pb::request_op::Request as Operation;

/// An etcd of our own. Ends with the test.
struct Etcd {
    child: Child,
    data: tempfile::TempDir,
    ports: [u16; 2],
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start(data: &tempfile::TempDir, [client, peer]: [u16; 2]) -> Result<Child> {
    let client = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let child = Command::new("etcd")
        .arg("--data-dir")
        .arg(data.path())
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args([
            "--initial-cluster",
            &format!("default={peer}"),
            "--unsafe-no-fsync",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child)
}

impl Etcd {
    fn start() -> Result<Option<Self>> {
        if Command::new("etcd").arg("--version").output().is_err() {
            return Ok(None);
        }
        let data = tempfile::tempdir()?;
        let ports = [free_port()?, free_port()?];
        let child = start(&data, ports)?;
        Ok(Some(Self { child, data, ports }))
    }

    fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.child = start(&self.data, self.ports)?;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn channel(&self) -> Result<Channel> {
        let [client, _] = self.ports;
        Ok(Endpoint::from_shared(format!("http://127.0.0.1:{client}"))?.connect_lazy())
    }

    /// A client of the test's own, so that what is read is not read by what wrote it.
    fn client(&self) -> Result<KvClient<Channel>> {
        Ok(KvClient::new(self.channel()?))
    }

    async fn run(&self, request: Operation) -> Result<()> {
        let success = vec![pb::RequestOp {
            request: Some(request),
        }];
        self.client()?.txn(pb::TxnRequest { success }).await?;
        Ok(())
    }

    async fn put(&self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (key.into(), value.into());
        self.run(Operation::RequestPut(pb::PutRequest { key, value }))
            .await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        let key = key.into();
        self.run(Operation::RequestDeleteRange(pb::DeleteRangeRequest {
            key,
        }))
        .await
    }

    async fn keys(&self) -> Result<BTreeMap<String, String>> {
        // From the first possible key, without an end.
        let all = pb::RangeRequest {
            key: vec![0],
            range_end: vec![0],
            limit: 0,
            revision: 0,
        };
        let reply = self.client()?.range(all).await?.into_inner();
        let text = |bytes| String::from_utf8(bytes);
        reply
            .kvs
            .into_iter()
            .map(|pair| Ok((text(pair.key)?, text(pair.value)?)))
            .collect()
    }

    async fn ready(&self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.keys().await.is_err() {
            assert!(Instant::now() < deadline, "etcd does not start");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

fn service(name: &str, ip: &str) -> Result<Change> {
    Ok(Change::Service(Service {
        key: ServiceKey::new("default", name),
        kind: Kind::ClusterIp {
            ips: vec![ip.parse()?],
        },
        ports: Vec::new(),
        publish_not_ready: false,
    }))
}

/// What should be in etcd, apart from what others put there.
fn desired(zone: &SharedZone, layout: &Layout) -> BTreeMap<String, String> {
    let zone = zone.read();
    let subjects = Layout::subjects(&zone);
    let keys = subjects
        .iter()
        .flat_map(|subject| layout.keys(&zone, subject));
    keys.map(|(key, message)| (key, message.to_json()))
        .collect()
}

/// Waits until etcd has exactly what it should have, and the keys of others.
async fn settled(etcd: &Etcd, zone: &SharedZone, layout: &Layout) -> Result<()> {
    let mut expected = desired(zone, layout);
    expected.extend(foreign());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = etcd.keys().await.unwrap_or_default();
        if seen == expected {
            return Ok(());
        }
        if Instant::now() > deadline {
            let missing: Vec<_> = expected
                .iter()
                .filter(|(k, v)| seen.get(*k) != Some(v))
                .collect();
            let extra: Vec<_> = seen
                .keys()
                .filter(|key| !expected.contains_key(*key))
                .collect();
            return Err(format!("missing: {missing:?}, too many: {extra:?}").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Keys next to ours that must not be touched.
fn foreign() -> BTreeMap<String, String> {
    let keys = [
        "/skydns/local/clusterx/a",
        "/skydns/local",
        "/skydns/org/example/a",
        "/other",
    ];
    keys.map(|key| (key.to_owned(), "{}".to_owned())).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_follow_the_zone() -> Result<()> {
    let Some(mut etcd) = Etcd::start()? else {
        missing("keys_follow_the_zone", "needs the program etcd");
        return Ok(());
    };
    let layout = Layout::new("/skydns")?;
    let config = ExportConfig {
        layout: layout.clone(),
        interval: Duration::from_millis(10),
        retry: Duration::from_millis(100),
        resync: Duration::from_secs(3600),
        timeout: Duration::from_secs(5),
        user: None,
    };
    let zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    let zone = Arc::new(SharedZone::new(zone));
    etcd.ready().await?;
    for (key, value) in foreign() {
        etcd.put(&key, &value).await?;
    }
    // Left over from an earlier run: of a Service that is gone, and of one that changed.
    etcd.put(
        "/skydns/local/cluster/svc/default/gone/x0",
        r#"{"host":"10.9.9.9"}"#,
    )
    .await?;
    etcd.put(
        "/skydns/local/cluster/svc/default/a/x0",
        r#"{"host":"10.9.9.9"}"#,
    )
    .await?;

    let task = tokio::spawn(export(
        Arc::clone(&zone),
        etcd.channel()?,
        config,
        std::future::pending(),
    ));
    zone.apply([
        service("a", "10.0.0.1")?,
        service("b", "10.0.0.2")?,
        Change::Synced,
    ]);
    settled(&etcd, &zone, &layout).await?;
    assert!(etcd.keys().await?["/skydns/local/cluster/svc/default/a/x0"].contains("10.0.0.1"));

    zone.apply([service("a", "10.0.0.3")?]);
    zone.apply([Change::ServiceRemoved(ServiceKey::new("default", "b"))]);
    settled(&etcd, &zone, &layout).await?;

    // Something changes while etcd is away.
    etcd.stop()?;
    zone.apply([service("c", "10.0.0.4")?]);
    etcd.restart()?;
    settled(&etcd, &zone, &layout).await?;

    // More keys than fit into one transaction, or onto one page.
    let many = (0..1500)
        .filter_map(|i| service(&format!("s{i}"), &format!("10.1.{}.{}", i / 250, i % 250)).ok());
    zone.apply(many);
    settled(&etcd, &zone, &layout).await?;
    task.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_others_change_is_repaired() -> Result<()> {
    let Some(etcd) = Etcd::start()? else {
        missing("what_others_change_is_repaired", "needs the program etcd");
        return Ok(());
    };
    let layout = Layout::new("/skydns")?;
    let config = ExportConfig {
        layout: layout.clone(),
        interval: Duration::from_millis(10),
        retry: Duration::from_millis(100),
        resync: Duration::from_millis(500),
        timeout: Duration::from_secs(5),
        user: None,
    };
    let zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    let zone = Arc::new(SharedZone::new(zone));
    let endpoints: Vec<_> = (0..150)
        .map(|i| portolan_dns::Endpoint {
            addresses: vec![std::net::Ipv4Addr::new(172, 16, 0, i).into()],
            ready: true,
            hostname: None,
            pod: None,
            zone: None,
        })
        .collect();
    let slice = portolan_dns::Slice {
        key: portolan_dns::SliceKey {
            namespace: "default".into(),
            name: "h-1".into(),
        },
        service: "h".into(),
        endpoints,
        ports: Vec::new(),
    };
    let headless = Service {
        key: ServiceKey::new("default", "h"),
        kind: Kind::Headless,
        ports: Vec::new(),
        publish_not_ready: false,
    };
    zone.apply([
        Change::Service(headless),
        Change::Slice(slice),
        Change::Synced,
    ]);
    let task = tokio::spawn(export(
        Arc::clone(&zone),
        etcd.channel()?,
        config,
        std::future::pending(),
    ));
    let ours = desired(&zone, &layout);
    assert!(
        ours.len() > 300,
        "a transaction of etcd takes 128 operations"
    );
    let wait = async || -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while etcd.keys().await.unwrap_or_default() != ours {
            assert!(Instant::now() < deadline, "not repaired");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    wait().await?;
    etcd.delete("/skydns/local/cluster/svc/default/h/172-16-0-7/x0")
        .await?;
    etcd.put("/skydns/local/cluster/svc/default/h/172-16-0-8/x0", "{}")
        .await?;
    etcd.put("/skydns/local/cluster/stray", "{}").await?;
    wait().await?;
    task.abort();
    Ok(())
}
