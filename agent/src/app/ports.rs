// SPDX-License-Identifier: Apache-2.0

//! Ports of the agent.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::routing::any;
use portolan_runtime::{Admin, Connections, DebugSocket, Vital, listen, serve_http};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::args::RunArgs;
use crate::healthz::Healthz;
use crate::kube_proxy::Search;

/// Default path of the debug socket.
const DEBUG_SOCKET: &str = "/run/portolan/agent.sock";

/// Pause between two looks for a kube-proxy that still runs.
const LOOK: Duration = Duration::from_secs(1);

/// The listeners, bound before anything else starts.
#[derive(Debug)]
pub(super) struct Ports {
    admin: TcpListener,
    debug: Option<DebugSocket>,
    /// Whether `/debug` is served on the socket only.
    debug_on_socket_only: bool,
    healthz: Option<TcpListener>,
}

impl Ports {
    /// Binds the ports, and writes them to the port file, if there is one.
    pub(super) async fn bind(args: &RunArgs) -> anyhow::Result<Self> {
        let admin = listen(args.admin_listen()?).await;
        let admin = admin.context("--admin-listen")?;
        let healthz = match args.healthz_listen()? {
            Some(address) => Some(listen(address).await.context("--healthz-listen")?),
            None => None,
        };
        let debug = args.debug.bind(DEBUG_SOCKET)?;
        if let Some(path) = &args.port_file {
            let mut text = format!("admin={}\n", admin.local_addr()?.port());
            if let Some(healthz) = &healthz {
                text += &format!("healthz={}\n", healthz.local_addr()?.port());
            }
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
        }
        Ok(Self {
            admin,
            debug,
            debug_on_socket_only: args.debug.names_socket(),
            healthz,
        })
    }

    /// Binds the ports, in a takeover as soon as a kube-proxy that runs has released them.
    pub(super) async fn bind_or_wait(args: &RunArgs) -> anyhow::Result<Self> {
        let mut said = false;
        loop {
            let error = match Self::bind(args).await {
                Err(error) if args.takeover.is_some() && is_in_use(&error) => error,
                bound => return bound,
            };
            let Some(running) = args.kube_proxy_search().find().await else {
                // It may have ended in between.
                return Self::bind(args).await;
            };
            if !std::mem::replace(&mut said, true) {
                tracing::warn!("takeover: {running}: waiting until it has ended ({error:#})");
            }
            sleep(LOOK).await;
        }
    }

    /// The places of a search that are not this program's own.
    pub(super) fn others(&self, search: Search) -> Search {
        let is_own = |address: &SocketAddr| {
            let listeners = [Some(&self.admin), self.healthz.as_ref()];
            let own = listeners.into_iter().flatten();
            own.filter_map(|listener| listener.local_addr().ok())
                .any(|own| covers(own, *address))
        };
        Search {
            metrics: search.metrics.filter(|address| !is_own(address)),
            healthz: search.healthz.filter(|address| !is_own(address)),
            ..search
        }
    }

    /// Serves until the agent ends.
    pub(super) fn serve(self, admin: Admin, healthz: Healthz, mode: &'static str, vital: &Vital) {
        let ending = &vital.ending;
        let all = admin.clone().router().merge(kube_proxy_routes(mode));
        let admin = match self.debug_on_socket_only {
            true => admin.router_without_debug().merge(kube_proxy_routes(mode)),
            false => all.clone(),
        };
        if let Some(socket) = self.debug {
            let debug = socket.serve(all, ending.clone());
            vital.spawn("debug server", debug);
        }
        let serve = |name: &'static str, listener, router| {
            // Each port has its own limit of connections.
            let connections = Connections::default();
            vital.spawn(
                name,
                serve_http(listener, router, connections, ending.clone()),
            );
        };
        serve("admin server", self.admin, admin);
        if let Some(listener) = self.healthz {
            serve("healthz server", listener, healthz.router());
        }
    }
}

/// Returns `true` if connections to an address reach a listener.
fn covers(listener: SocketAddr, address: SocketAddr) -> bool {
    listener.port() == address.port()
        && (listener.ip().is_unspecified() || listener.ip() == address.ip())
}

fn is_in_use(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// Routes of kube-proxy's metrics port that operators use.
fn kube_proxy_routes(mode: &'static str) -> Router {
    Router::new()
        .route("/proxyMode", any(move || async move { mode }))
        .route("/healthz", any(|| async { "ok" }))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    #[test]
    fn own_listeners_are_not_taken_for_a_kube_proxys() {
        let address = |text: &str| text.parse().unwrap();
        for (listener, asked, expected) in [
            ("127.0.0.1:10249", "127.0.0.1:10249", true),
            ("[::]:10256", "127.0.0.1:10256", true),
            ("127.0.0.1:10349", "127.0.0.1:10249", false),
            ("10.0.0.1:10249", "127.0.0.1:10249", false),
        ] {
            let covered = covers(address(listener), address(asked));
            assert_eq!(covered, expected, "{listener} {asked}");
        }
    }

    #[tokio::test]
    async fn kube_proxys_routes_answer_in_plain_text() {
        for (path, expected) in [("/proxyMode", "nftables"), ("/healthz", "ok")] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = kube_proxy_routes("nftables")
                .oneshot(request)
                .await
                .unwrap();
            let text = response.headers()["content-type"]
                .to_str()
                .unwrap()
                .to_owned();
            assert!(text.starts_with("text/plain"), "{text}");
            assert_eq!(to_bytes(response.into_body(), 99).await.unwrap(), expected);
        }
    }
}
