// SPDX-License-Identifier: Apache-2.0

//! The exporter against real etcds. Says SKIP where there is no etcd, which is a failure in CI.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions};
use portolan_dns::skydns::{ExportConfig, Layout, export};
use portolan_dns::{Kind, NamesChange, Service, ServiceKey, SharedZone, Zone, ZoneConfig};
use portolan_e2e::lane::missing;
use portolan_e2e::ports;
use tokio::time::{Instant, sleep};
use tonic::transport::{Channel, Endpoint};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The ports of one member: for clients and for other members.
type Ports = [u16; 2];

/// One member of an etcd cluster. Killed on drop.
struct Etcd {
    child: Child,
    data: tempfile::TempDir,
    index: usize,
    cluster: Vec<Ports>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ports that no other process takes, also while a member is restarted.
fn free_ports(members: usize) -> Result<Vec<Ports>> {
    (0..members).map(|_| Ok(ports::reserve()?)).collect()
}

fn start(data: &tempfile::TempDir, index: usize, cluster: &[Ports]) -> Result<Child> {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let [client, peer] = cluster[index].map(url);
    let members = cluster.iter().enumerate();
    let members = members.map(|(index, [_, peer])| format!("m{index}={}", url(*peer)));
    let child = Command::new("etcd")
        .args(["--name", &format!("m{index}")])
        .arg("--data-dir")
        .arg(data.path())
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args([
            "--initial-cluster",
            &members.collect::<Vec<_>>().join(","),
            "--unsafe-no-fsync",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child)
}

impl Etcd {
    fn start() -> Result<Option<Self>> {
        Ok(Self::start_cluster(1)?.and_then(|mut members| members.pop()))
    }

    fn start_cluster(members: usize) -> Result<Option<Vec<Self>>> {
        if Command::new("etcd").arg("--version").output().is_err() {
            return Ok(None);
        }
        let cluster = free_ports(members)?;
        let member = |index| -> Result<Self> {
            let data = tempfile::tempdir()?;
            let child = start(&data, index, &cluster)?;
            let cluster = cluster.clone();
            Ok(Self {
                child,
                data,
                index,
                cluster,
            })
        };
        let members: Result<Vec<_>> = (0..members).map(member).collect();
        members.map(Some)
    }

    fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.child = start(&self.data, self.index, &self.cluster)?;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn url(&self) -> String {
        let [client, _] = self.cluster[self.index];
        format!("http://127.0.0.1:{client}")
    }

    fn channel(&self) -> Result<Channel> {
        Ok(Endpoint::from_shared(self.url())?.connect_lazy())
    }

    /// A client of the test's own, apart from the exporter's.
    async fn client(&self) -> Result<Client> {
        Ok(Client::connect([self.url()], None).await?)
    }

    async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.client().await?.put(key, value, None).await?;
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.client().await?.delete(key, None).await?;
        Ok(())
    }

    async fn keys(&self) -> Result<BTreeMap<String, String>> {
        let all = GetOptions::new().with_all_keys();
        let mut reply = self.client().await?.get("", Some(all)).await?;
        let text = |bytes| String::from_utf8(bytes);
        let pairs = reply.take_kvs().into_iter();
        pairs
            .map(|pair| {
                let (key, value) = pair.into_key_value();
                Ok((text(key)?, text(value)?))
            })
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

fn service(name: &str, ip: &str) -> Result<NamesChange> {
    Ok(NamesChange::Service(Service {
        key: ServiceKey::new("default", name),
        kind: Kind::ClusterIp {
            ips: vec![ip.parse()?],
        },
        ports: Vec::new(),
        publish_not_ready: false,
    }))
}

/// The keys that the exporter should write.
fn desired(zone: &SharedZone, layout: &Layout) -> BTreeMap<String, String> {
    let subjects = Layout::subjects(zone);
    let zone = zone.read();
    let keys = subjects
        .iter()
        .flat_map(|subject| layout.keys(&zone, subject));
    keys.map(|(key, message)| (key, message.to_json()))
        .collect()
}

/// Waits until etcd has exactly the desired keys and the foreign ones.
async fn settled(etcd: &Etcd, zone: &SharedZone, layout: &Layout) -> Result<()> {
    let mut expected = desired(zone, layout);
    expected.extend(foreign());
    holds(etcd, &expected).await
}

/// Waits until etcd has exactly these keys.
async fn holds(etcd: &Etcd, expected: &BTreeMap<String, String>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = etcd.keys().await.unwrap_or_default();
        if seen == *expected {
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

/// Foreign keys near the exporter's, which must not be touched.
fn foreign() -> BTreeMap<String, String> {
    let keys = [
        "/skydns/local/clusterx/a",
        "/skydns/local",
        "/skydns/org/example/a",
        "/other",
    ];
    keys.map(|key| (key.to_owned(), "{}".to_owned())).into()
}

/// An export that writes changes at once.
fn prompt(layout: &Layout, resync: Duration) -> ExportConfig {
    ExportConfig {
        layout: layout.clone(),
        interval: Duration::from_millis(10),
        retry: Duration::from_millis(100),
        resync,
        timeout: Duration::from_secs(5),
        user: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_follow_the_zone() -> Result<()> {
    let Some(mut etcd) = Etcd::start()? else {
        missing("keys_follow_the_zone", "needs the program etcd");
        return Ok(());
    };
    let layout = Layout::new("/skydns")?;
    let config = prompt(&layout, Duration::from_secs(3600));
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
        "/skydns/local/cluster/svc/default/a/_x0",
        r#"{"host":"10.9.9.9"}"#,
    )
    .await?;

    let task = tokio::spawn(export(
        Arc::clone(&zone),
        vec![etcd.channel()?],
        config,
        std::future::pending(),
    ));
    zone.apply([
        service("a", "10.0.0.1")?,
        service("b", "10.0.0.2")?,
        NamesChange::Synced,
    ]);
    settled(&etcd, &zone, &layout).await?;
    assert!(etcd.keys().await?["/skydns/local/cluster/svc/default/a/_x0"].contains("10.0.0.1"));

    zone.apply([service("a", "10.0.0.3")?]);
    zone.apply([NamesChange::ServiceRemoved(ServiceKey::new("default", "b"))]);
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
async fn foreign_changes_are_repaired() -> Result<()> {
    let Some(etcd) = Etcd::start()? else {
        missing("foreign_changes_are_repaired", "needs the program etcd");
        return Ok(());
    };
    let layout = Layout::new("/skydns")?;
    let config = prompt(&layout, Duration::from_millis(500));
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
        cluster: None,
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
        NamesChange::Service(headless),
        NamesChange::Slice(slice),
        NamesChange::Synced,
    ]);
    let task = tokio::spawn(export(
        Arc::clone(&zone),
        vec![etcd.channel()?],
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
    etcd.delete("/skydns/local/cluster/svc/default/h/172-16-0-7/_x0")
        .await?;
    etcd.put("/skydns/local/cluster/svc/default/h/172-16-0-8/_x0", "{}")
        .await?;
    etcd.put("/skydns/local/cluster/stray", "{}").await?;
    wait().await?;
    task.abort();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn export_fails_over_between_members() -> Result<()> {
    let Some(mut members) = Etcd::start_cluster(3)? else {
        missing(
            "export_fails_over_between_members",
            "needs the program etcd",
        );
        return Ok(());
    };
    for member in &members {
        member.ready().await?;
    }
    let layout = Layout::new("/skydns")?;
    let config = prompt(&layout, Duration::from_secs(3600));
    let zone = Zone::new(ZoneConfig::new("cluster.local")?, 1)?;
    let zone = Arc::new(SharedZone::new(zone));
    // The first endpoint is dead from the beginning.
    members[0].stop()?;
    let channels: Result<Vec<_>> = members.iter().map(Etcd::channel).collect();
    let task = tokio::spawn(export(
        Arc::clone(&zone),
        channels?,
        config,
        std::future::pending(),
    ));
    zone.apply([service("a", "10.0.0.1")?, NamesChange::Synced]);
    holds(&members[2], &desired(&zone, &layout)).await?;

    // The member in use dies, then the next one, while the others keep the quorum.
    for dead in [1, 2] {
        members[(dead + 2) % 3].restart()?;
        members[(dead + 2) % 3].ready().await?;
        members[dead].stop()?;
        zone.apply([service(&format!("b{dead}"), "10.0.0.2")?]);
        holds(&members[(dead + 1) % 3], &desired(&zone, &layout)).await?;
    }
    task.abort();
    Ok(())
}
