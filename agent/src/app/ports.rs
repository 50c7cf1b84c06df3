// SPDX-License-Identifier: Apache-2.0

//! Ports of the agent.

use anyhow::Context as _;
use axum::Router;
use axum::routing::any;
use portolan_runtime::{Admin, Connections, DebugSocket, Vital, listen, serve_http};
use tokio::net::TcpListener;

use crate::args::RunArgs;
use crate::healthz::Healthz;

/// Default path of the debug socket.
const DEBUG_SOCKET: &str = "/run/portolan/agent.sock";

/// The listeners, bound before anything else starts.
#[derive(Debug)]
pub(super) struct Ports {
    admin: TcpListener,
    debug: Option<DebugSocket>,
    healthz: Option<TcpListener>,
}

impl Ports {
    /// Binds the ports, and writes them to the port file, if there is one.
    pub(super) async fn bind(args: &RunArgs) -> anyhow::Result<Self> {
        let admin = listen(args.admin_listen()?).await;
        let admin = admin.context("--admin-listen")?;
        let debug = args.debug.bind(DEBUG_SOCKET)?;
        let healthz = match args.healthz_listen()? {
            Some(address) => Some(listen(address).await.context("--healthz-listen")?),
            None => None,
        };
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
            healthz,
        })
    }

    /// Serves until the agent ends.
    pub(super) fn serve(self, admin: Admin, healthz: Healthz, vital: &Vital) {
        let admin = admin.router().merge(kube_proxy_routes());
        let ending = &vital.ending;
        if let Some(socket) = self.debug {
            let debug = socket.serve(admin.clone(), ending.clone());
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

/// Routes of kube-proxy's metrics port that operators use.
fn kube_proxy_routes() -> Router {
    Router::new()
        .route("/proxyMode", any(|| async { "ipvs" }))
        .route("/healthz", any(|| async { "ok" }))
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn kube_proxys_routes_answer_in_plain_text() {
        for (path, expected) in [("/proxyMode", "ipvs"), ("/healthz", "ok")] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = kube_proxy_routes().oneshot(request).await.unwrap();
            let text = response.headers()["content-type"]
                .to_str()
                .unwrap()
                .to_owned();
            assert!(text.starts_with("text/plain"), "{text}");
            assert_eq!(to_bytes(response.into_body(), 99).await.unwrap(), expected);
        }
    }
}
