// SPDX-License-Identifier: Apache-2.0

//! The servers of the comparison: an API server, CoreDNS, and a controller for each way of settings.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use hickory_proto::rr::RecordType;
use portolan_e2e::ports;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use serde_json::json;

use crate::agent::{self, Agent};
use crate::ask::{Question, ask};
use crate::fixtures;
use crate::programs::{HOST, PATIENT, Running, controller, coredns_or_skip, etcd, local, url};

/// Equivalent settings of the plugin and of a controller.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) zones: &'static str,
    /// The plugin's part of a Corefile.
    pub(crate) plugin: &'static str,
    /// The controller's flags.
    pub(crate) flags: &'static [&'static str],
}

pub(crate) const WAYS: [Way; 7] = [
    Way {
        name: "disabled",
        zones: "cluster.local",
        plugin: "pods disabled",
        flags: &["--dns-pods=disabled", NAME_SERVER],
    },
    Way {
        name: "insecure",
        zones: "cluster.local",
        plugin: "pods insecure",
        flags: &["--dns-pods=insecure", NAME_SERVER],
    },
    Way {
        name: "verified",
        zones: "cluster.local",
        plugin: "pods verified",
        flags: &["--dns-pods=verified", NAME_SERVER],
    },
    Way {
        name: "pod-names",
        zones: "cluster.local second.test",
        plugin: "pods verified\n  endpoint_pod_names\n  zonal\n  ttl 30",
        flags: &[
            "--dns-zone=second.test",
            "--dns-pods=verified",
            "--dns-endpoint-pod-names",
            "--dns-zonal",
            "--dns-ttl=30",
            NAME_SERVER,
        ],
    },
    Way {
        name: "ignore-empty",
        zones: "cluster.local",
        plugin: "ignore empty_service",
        flags: &["--dns-ignore-empty-service", NAME_SERVER],
    },
    Way {
        name: "namespaces",
        zones: "cluster.local",
        plugin: "pods verified\n  namespaces podns default",
        flags: &[
            "--dns-pods=verified",
            "--dns-namespace=podns",
            "--dns-namespace=default",
            NAME_SERVER,
        ],
    },
    // The plugin finds its own Service by its endpoints, so it does not find it here.
    Way {
        name: "no-endpoints",
        zones: "cluster.local",
        plugin: "pods insecure\n  noendpoints",
        flags: &["--dns-pods=insecure", "--dns-no-endpoints"],
    },
];

pub(crate) const NAME_SERVER: &str = "--dns-name-server=testns/name-servers";

/// The index of the way without names of Pods.
pub(crate) const DISABLED: usize = 0;

/// The index of the way with zone files and etcd.
pub(crate) const EXPORTED: usize = 2;

/// The index of the way with an agent.
pub(crate) const COPIED: usize = 3;

/// The indexes of the ways without empty Services, with few Namespaces, and without endpoints.
pub(crate) const NOT_EMPTY: usize = 4;
pub(crate) const FEW_NAMESPACES: usize = 5;
pub(crate) const NO_ENDPOINTS: usize = 6;

/// The index of the comparison with the agent, which follows those of all ways.
pub(crate) const OF_AGENT: usize = WAYS.len();

/// The ports of all servers.
pub(crate) struct Ports {
    /// The kubernetes plugin.
    pub(crate) plugin: [u16; WAYS.len()],
    /// The grpc plugin, which queries the controllers.
    pub(crate) grpc: [u16; WAYS.len()],
    /// The grpc plugin, which queries the agent.
    pub(crate) agent: u16,
    /// The controller that the agent follows.
    pub(crate) agents: u16,
    pub(crate) files: u16,
    pub(crate) etcd: u16,
    pub(crate) etcd_itself: u16,
}

pub(crate) struct World {
    // Fields drop in this order: clients before the servers they use.
    _agent: Agent,
    _controllers: Vec<Running>,
    _coredns: Running,
    _etcd: Running,
    pub(crate) servers: Servers,
    pub(crate) ports: Ports,
    _directory: tempfile::TempDir,
}

pub(crate) fn choose_ports() -> Ports {
    let all: [u16; WAYS.len() + 5] = ports::reserve().unwrap();
    let (grpc, rest) = all.split_first_chunk().unwrap();
    let [agent, agents, files, etcd, etcd_itself] = *rest.first_chunk().unwrap();
    Ports {
        plugin: ports::reserve().unwrap(),
        grpc: *grpc,
        agent,
        agents,
        files,
        etcd,
        etcd_itself,
    }
}

/// The socket of a controller.
pub(crate) fn socket(directory: &Path, mode: &str) -> String {
    format!("unix://{}/{mode}.sock", directory.display())
}

pub(crate) fn corefile(directory: &Path, kubeconfig: &Path, ports: &Ports) -> String {
    let outside = format!("file {}/db.interwebs interwebs.test", directory.display());
    let mut text = String::new();
    for (index, way) in WAYS.iter().enumerate() {
        let (plugin, grpc) = (ports.plugin[index], ports.grpc[index]);
        let socket = socket(directory, way.name);
        // A plugin bound to all addresses looks for itself among the endpoints.
        text += &format!(
            ".:{plugin} {{\n errors\n {outside}\n kubernetes {} in-addr.arpa ip6.arpa {{\n  \
             kubeconfig {} test\n  {}\n }}\n}}\n.:{grpc} {{\n bind {HOST}\n errors\n grpc . {socket}\n}}\n",
            way.zones,
            kubeconfig.display(),
            way.plugin,
        );
    }
    let socket = agent::socket(directory);
    text += &format!(
        ".:{} {{\n bind {HOST}\n errors\n grpc . {socket}\n}}\n",
        ports.agent
    );
    for zone in ["cluster.local", "in-addr.arpa", "ip6.arpa"] {
        let (port, file) = (
            ports.files,
            directory.join("zones").join(format!("db.{zone}")),
        );
        text += &format!(
            "{zone}:{port} {{\n bind {HOST}\n errors\n file {} {{\n  reload 1s\n }}\n}}\n",
            file.display()
        );
    }
    let (files, etcd, itself) = (ports.files, ports.etcd, url(ports.etcd_itself));
    text + &format!(
        "interwebs.test:{files} {{\n bind {HOST}\n {outside}\n}}\n.:{etcd} {{\n bind {HOST}\n errors\n {outside}\n \
             etcd cluster.local in-addr.arpa ip6.arpa {{\n  path /skydns\n  endpoint {itself}\n }}\n}}\n"
    )
}

pub(crate) const INTERWEBS: &str = "$ORIGIN interwebs.test.\n@ 60 SOA ns hostmaster 1 60 60 60 60\n@ 60 NS ns\n\
    ns 60 A 192.0.2.53\next 60 A 192.0.2.80\n";

impl World {
    pub(crate) fn start_or_skip(test: &str) -> Option<Self> {
        let coredns = coredns_or_skip(test)?;
        let temporary = tempfile::tempdir().unwrap();
        let directory = temporary.path();
        let servers = Servers::start_or_skip(test, directory)?;
        let ports = choose_ports();
        std::fs::write(directory.join("db.interwebs"), INTERWEBS).unwrap();
        let etcd = etcd(directory, ports.etcd_itself).unwrap();
        let upstream = format!("--dns-upstream={}", local(ports.files));
        let start = |(index, way): (usize, &Way)| {
            let mut args = vec![
                format!("--dns-bind-address={}", socket(directory, way.name)),
                upstream.clone(),
            ];
            args.extend(way.flags.iter().map(|flag| (*flag).to_owned()));
            if index == EXPORTED {
                let zones = directory.join("zones");
                args.push(format!("--dns-zone-dir={}", zones.display()));
                args.push("--dns-zone-interval=1".to_owned());
                args.push(format!("--dns-etcd-endpoint={}", url(ports.etcd_itself)));
            }
            let listen = match index {
                COPIED => local(ports.agents),
                _ => local(0),
            };
            controller(directory, way.name, listen, servers.kubeconfig(), &args).unwrap()
        };
        let controllers = WAYS.iter().enumerate().map(start).collect();
        let agent = Agent::start(directory, ports.agents, &[upstream]);
        // CoreDNS does not start without its files.
        let last = directory.join("zones/db.ip6.arpa");
        wait_for("zone files", PATIENT, || last.exists().then_some(())).unwrap();
        let text = corefile(directory, servers.kubeconfig(), &ports);
        std::fs::write(directory.join("Corefile"), text).unwrap();
        let mut command = Command::new(coredns);
        command.arg("-conf").arg(directory.join("Corefile"));
        let coredns = Running::start(directory, "coredns", &mut command).unwrap();
        Some(Self {
            _agent: agent,
            _controllers: controllers,
            _coredns: coredns,
            _etcd: etcd,
            servers,
            ports,
            _directory: temporary,
        })
    }

    pub(crate) fn apply(&self, objects: &[serde_json::Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
        let apply = ["apply", "--server-side", "-f", "-"];
        self.servers
            .kubectl_with_input(&apply, &list.to_string())
            .unwrap();
    }

    pub(crate) fn set_addresses(&self) {
        for (namespace, pod, ip, ready) in fixtures::PODS {
            let ready = if ready { "True" } else { "False" };
            let conditions = json!([{"type": "Ready", "status": ready}]);
            let mut ips = ip.split(' ');
            let ip = ips.clone().next();
            let ips: Vec<_> = ips.by_ref().map(|ip| json!({"ip": ip})).collect();
            let status =
                json!({"phase": "Running", "podIP": ip, "podIPs": ips, "conditions": conditions});
            let patch = json!({ "status": status }).to_string();
            let what = ["patch", "pod", pod, "--namespace", namespace];
            let how = ["--subresource", "status", "--type", "merge", "-p", &patch];
            self.servers
                .kubectl(&[&what[..], &how[..]].concat())
                .unwrap();
        }
    }

    /// Returns when the slices that the endpointslice controller makes have all their endpoints.
    pub(crate) fn await_slices(&self) {
        let list = [
            "get",
            "endpointslices",
            "--namespace=testns",
            "--output=jsonpath={.items[*].endpoints[*].addresses[*]}",
        ];
        wait_for("slices of Pods", PATIENT, || {
            let found = self.servers.kubectl(&list).ok()?;
            let found: Vec<_> = found.split_whitespace().collect();
            fixtures::SELECTED
                .iter()
                .all(|address| found.contains(address))
                .then_some(())
        })
        .unwrap();
    }

    /// Returns when all servers have all that was applied before [`fixtures::last`]: each zone is
    /// written and read on its own, so that a record of each is asked for.
    pub(crate) fn settle_all(&self) {
        use fixtures::last_names::{ADDRESSES, ENDPOINT, PODS, SERVICE};
        self.settle(&Question::a(SERVICE), true, &[FEW_NAMESPACES]);
        let addresses = ADDRESSES.map(|name| Question::new(name, RecordType::PTR));
        let endpoint = Question::new(ENDPOINT, RecordType::AAAA);
        for question in addresses.iter().chain([&endpoint]) {
            self.settle(question, true, &[FEW_NAMESPACES, NO_ENDPOINTS]);
        }
        let [few, other] = PODS.map(Question::a);
        self.settle(&few, true, &[DISABLED, NOT_EMPTY]);
        self.settle(&other, true, &[DISABLED, NOT_EMPTY, FEW_NAMESPACES]);
    }

    /// Returns when a question has an answer, or none, in all ways but `except`.
    pub(crate) fn settle(&self, question: &Question, has_answer: bool, except: &[usize]) {
        let ports = &self.ports;
        let rest = [ports.agent, ports.files, ports.etcd];
        let ways = (0..WAYS.len()).filter(|way| !except.contains(way));
        let ways = ways.flat_map(|way| [ports.plugin[way], ports.grpc[way]]);
        let mut all: Vec<_> = ways.chain(rest).collect();
        let waited = wait_for(&question.to_string(), PATIENT, || {
            all.retain(|port| {
                let seen = ask(local(*port), question, Duration::from_secs(2));
                !seen.is_ok_and(|seen| seen.answers.is_empty() != has_answer)
            });
            all.is_empty().then_some(())
        });
        assert!(waited.is_ok(), "{waited:?}: {all:?}");
    }
}
