//! The admin server: `/livez`, `/readyz`, `/metrics`, and dumps under `/debug/` for loopback only.

use std::sync::Arc;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::Readiness;
use crate::bounded::{Bounded, Peer};

/// The metrics of a program, complete before it starts.
pub type Metrics = Arc<Registry>;

/// What the admin server answers.
#[derive(Debug, Default)]
pub struct Admin {
    /// For `/metrics`, in the OpenMetrics text format.
    pub metrics: Metrics,
    /// For `/readyz`.
    pub readiness: Readiness,
    /// Routes below `/debug`, answered on loopback only: they show names and addresses.
    pub debug: Router,
}

impl Admin {
    /// Serves until the token is cancelled.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve(
        self,
        listener: TcpListener,
        token: CancellationToken,
    ) -> std::io::Result<()> {
        self.serve_with(Router::new(), listener, token).await
    }

    /// As [`Self::serve`], with further routes, for everybody.
    ///
    /// # Errors
    /// If the listener fails.
    pub async fn serve_with(
        self,
        more: Router,
        listener: TcpListener,
        token: CancellationToken,
    ) -> std::io::Result<()> {
        let service = self
            .router()
            .merge(more)
            .into_make_service_with_connect_info::<Peer>();
        axum::serve(Bounded::new(listener), service)
            .with_graceful_shutdown(async move { token.cancelled().await })
            .await
    }

    fn router(self) -> Router {
        let debug = self.debug.layer(from_fn(loopback_only));
        Router::new()
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz).with_state(self.readiness))
            .route("/metrics", get(metrics).with_state(self.metrics))
            .nest("/debug", debug)
    }
}

async fn readyz(State(readiness): State<Readiness>) -> Response {
    let pending = readiness.pending();
    if pending.is_empty() {
        "ok\n".into_response()
    } else {
        let body = format!("waiting for: {}\n", pending.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
    }
}

async fn metrics(State(metrics): State<Metrics>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &metrics) {
        Ok(()) => {
            let format = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, format)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn loopback_only(
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if peer.ip().to_canonical().is_loopback() {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "dumps are for loopback only\n").into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::{Body, to_bytes};
    use tower::ServiceExt as _;

    use super::*;

    async fn get_from(router: Router, peer: &str, path: &str) -> (StatusCode, String) {
        let peer: SocketAddr = peer.parse().unwrap();
        let mut request = Request::builder().uri(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(Peer(peer)));
        let response = router.oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn dumps_are_for_loopback_only() {
        let router = || {
            let debug = Router::new().route("/table", get(|| async { "secret" }));
            Admin {
                debug,
                ..Admin::default()
            }
            .router()
        };
        let (status, body) = get_from(router(), "10.0.0.9:1234", "/debug/table").await;
        assert_eq!(
            (status, body.contains("secret")),
            (StatusCode::FORBIDDEN, false)
        );
        for peer in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(
                get_from(router(), peer, "/debug/table").await.0,
                StatusCode::OK,
                "{peer}"
            );
        }
        assert_eq!(
            get_from(router(), "10.0.0.9:1", "/livez").await.0,
            StatusCode::OK
        );
    }

    #[tokio::test]
    async fn ready_when_nothing_blocks() {
        let readiness = Readiness::default();
        let router = || {
            Admin {
                readiness: readiness.clone(),
                ..Admin::default()
            }
            .router()
        };
        let block = readiness.block("first table");
        let (status, body) = get_from(router(), "10.0.0.9:1", "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, "waiting for: first table\n");
        drop(block);
        assert_eq!(
            get_from(router(), "10.0.0.9:1", "/readyz").await.0,
            StatusCode::OK
        );
    }
}
