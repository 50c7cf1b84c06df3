//! The ports that the agent itself listens on.

use anyhow::Context as _;
use axum::Router;
use axum::routing::any;
use portolan_runtime::{Admin, Bounded, listen};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::RunArgs;
use crate::healthz::Healthz;

/// The listeners, bound before anything else happens.
#[derive(Debug)]
pub(super) struct Ports {
    admin: TcpListener,
    healthz: Option<TcpListener>,
}

impl Ports {
    /// Binds them, and writes their numbers to the port file, if there is to be one.
    pub(super) async fn bind(args: &RunArgs) -> anyhow::Result<Self> {
        let admin = listen(args.admin_listen).await.context("--admin-listen")?;
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
        Ok(Self { admin, healthz })
    }

    /// Serves until the token is cancelled.
    pub(super) async fn serve(
        self,
        admin: Admin,
        healthz: Healthz,
        token: &CancellationToken,
    ) -> anyhow::Result<()> {
        let healthz_port = async {
            let Some(listener) = self.healthz else {
                token.cancelled().await;
                return Ok(());
            };
            let stopped = token.clone().cancelled_owned();
            let serving = axum::serve(Bounded::new(listener), healthz.router());
            serving.with_graceful_shutdown(stopped).await
        };
        let admin_port = admin.serve_with(like_kube_proxy(), self.admin, token.clone());
        let both = async {
            tokio::try_join!(async { admin_port.await.context("admin server") }, async {
                healthz_port.await.context("healthz server")
            },)
        };
        // A connection that stays open does not hold up the end.
        tokio::select! {
            () = token.cancelled() => Ok(()),
            served = both => served.map(drop),
        }
    }
}

/// What kube-proxy has on its metrics port, and people ask for by hand.
fn like_kube_proxy() -> Router {
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
    async fn the_mode_is_told_as_plain_text() {
        for (path, expected) in [("/proxyMode", "ipvs"), ("/healthz", "ok")] {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = like_kube_proxy().oneshot(request).await.unwrap();
            let text = response.headers()["content-type"]
                .to_str()
                .unwrap()
                .to_owned();
            assert!(text.starts_with("text/plain"), "{text}");
            assert_eq!(to_bytes(response.into_body(), 99).await.unwrap(), expected);
        }
    }
}
