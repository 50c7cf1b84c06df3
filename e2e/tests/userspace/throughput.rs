// SPDX-License-Identifier: Apache-2.0

//! Throughput of the agent against that of a proxy that does nothing but `copy_bidirectional`, in one run.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use portolan_e2e::ask::address;
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::rig::{Family, Namespace};
use serde_json::json;

use crate::skip;
use crate::stage::{Stage, WEB, pods, rig, web};

/// Bytes of one transfer.
const BYTES: usize = 256 << 20;

/// Transfers of each kind; they alternate, and the fastest counts, since others use the machine too.
const ROUNDS: usize = 5;

/// A server that reads what comes, and says how much when the client has ended.
fn sink(listener: TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        thread::spawn(move || {
            let (mut buffer, mut all) = (vec![0; 256 << 10], 0_u64);
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                all += u64::try_from(length).unwrap();
            }
            let _ = stream.write_all(&all.to_be_bytes());
        });
    }
}

/// A proxy that only joins connections.
fn bare(listener: TcpListener, to: SocketAddr, node: Namespace) {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((mut client, _)) = listener.accept().await {
                // Made by this thread, which is in the node's namespace.
                let mut server = tokio::net::TcpStream::connect(to).await.unwrap();
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                }
                tokio::spawn(async move {
                    let size = 16 << 10;
                    let copied = tokio::io::copy_bidirectional_with_sizes(
                        &mut client,
                        &mut server,
                        size,
                        size,
                    );
                    let _ = copied.await;
                });
            }
        });
    };
    thread::spawn(move || node.run(work).unwrap());
}

/// Bytes a second of one transfer to an address.
fn transfer(from: &Namespace, to: SocketAddr) -> f64 {
    let work = || {
        let mut stream = TcpStream::connect(to).unwrap();
        let chunk = vec![7; 64 << 10];
        let start = Instant::now();
        for _ in 0..BYTES / chunk.len() {
            stream.write_all(&chunk).unwrap();
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u64::from_be_bytes(answer), u64::try_from(BYTES).unwrap());
        f64::from(u32::try_from(BYTES).unwrap()) / start.elapsed().as_secs_f64()
    };
    from.run(work).unwrap()
}

#[test]
fn throughput_is_that_of_a_bare_proxy() {
    if skip("throughput_is_that_of_a_bare_proxy") {
        return;
    }
    let rig = rig();
    let [a, _] = pods(&rig);
    let server = SocketAddr::from((a.pod.v4(), 9000));
    let listen = || TcpListener::bind(server).unwrap();
    let listener = a.pod.namespace().run(listen).unwrap();
    thread::spawn(move || sink(listener));
    let spec = json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 9000 }] });
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "web-1", "namespace": "default",
            "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": 9000 }],
        "endpoints": [{ "addresses": [a.pod.v4().to_string()] }] });
    let stage = Stage::new(rig, &[web(spec, &[]), vec![slice]].concat(), &[]);
    // Its clients are in the command's namespace too: the same loopback device before it, the same pair behind.
    let inside = stage.inside.namespace().clone();
    let plain = SocketAddr::from(([127, 0, 0, 1], 9001));
    let listener = inside.run(|| TcpListener::bind(plain).unwrap()).unwrap();
    bare(listener, server, stage.rig.node(0).namespace().clone());
    let ours = address(WEB, Family::V4, 80);
    let (mut best_bare, mut best_ours) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        best_bare = best_bare.max(transfer(&inside, plain));
        best_ours = best_ours.max(transfer(&inside, ours));
    }
    let megabytes = |rate: f64| rate / 1e6;
    figure("userspace_bare_proxy", megabytes(best_bare), "MB/s", None);
    figure("userspace_throughput", megabytes(best_ours), "MB/s", None);
    let percent = 100.0 * best_ours / best_bare;
    figure(
        "userspace_of_bare_proxy",
        percent,
        "%",
        Some(Goal::AtLeast(90.0)),
    );
    stage.stop();
}
