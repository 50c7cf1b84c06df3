// SPDX-License-Identifier: Apache-2.0

//! `/healthz` and `/livez` on a separate port (kube-proxy's 10256), for load balancers and the kubelet.
//!
//! `/healthz` fails on a node that is being removed, so that load balancers send it no new connections.
//! `/livez` does not, or the agent would be restarted for it (KEP-3836).

use std::collections::BTreeMap;
use std::time::SystemTime;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde::Serialize;

use crate::health::{Health, Report};

/// Handlers of the port, with counters of their answers.
#[derive(Debug, Clone)]
pub struct Healthz {
    health: Health,
    healthz: Family<Code, Counter>,
    livez: Family<Code, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: u16,
}

impl Healthz {
    /// Creates the handlers for an agent's health, and adds their metrics to a registry.
    pub fn register(health: Health, registry: &mut Registry) -> Self {
        let this = Self {
            health,
            healthz: Family::default(),
            livez: Family::default(),
        };
        registry.register(
            "kubeproxy_proxy_healthz",
            "Answers of /healthz by status",
            this.healthz.clone(),
        );
        registry.register(
            "kubeproxy_proxy_livez",
            "Answers of /livez by status",
            this.livez.clone(),
        );
        this
    }

    /// `/healthz` and `/livez`.
    pub fn router(self) -> Router {
        Router::new()
            .route("/healthz", any(healthz))
            .route("/livez", any(livez))
            .with_state(self)
    }
}

async fn healthz(State(this): State<Healthz>) -> Response {
    let report = this.health.now();
    let good = report.healthy() && report.eligible;
    answer(&report, Some(report.eligible), good, &this.healthz)
}

async fn livez(State(this): State<Healthz>) -> Response {
    let report = this.health.now();
    answer(&report, None, report.healthy(), &this.livez)
}

fn answer(
    report: &Report,
    eligible: Option<bool>,
    good: bool,
    counter: &Family<Code, Counter>,
) -> Response {
    let status = if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let code = status.as_u16();
    counter.get_or_create_owned(&Code { code }).inc();
    let mut response = (status, axum::Json(Body::new(report, eligible))).into_response();
    let nosniff = HeaderValue::from_static("nosniff");
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

/// Body in kube-proxy's format.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    status: BTreeMap<&'static str, FamilyBody>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

impl Body {
    fn new(report: &Report, node_eligible: Option<bool>) -> Self {
        let families = report.families.iter();
        let status = families.map(|(family, health)| {
            let body = FamilyBody {
                last_updated: rfc3339(health.last_updated),
                healthy: health.healthy,
            };
            (family.as_str(), body)
        });
        Self {
            last_updated: rfc3339(report.last_updated()),
            current_time: rfc3339(Some(report.now)),
            node_eligible,
            healthy: report.healthy(),
            status: status.collect(),
        }
    }
}

/// A time in Go's format; the zero time is in the year 1.
fn rfc3339(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| jiff::Timestamp::try_from(time).ok());
    time.map_or_else(
        || "0001-01-01T00:00:00Z".to_owned(),
        |time| time.to_string(),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::to_bytes;
    use axum::http::Request;
    use portolan_model::{Families, Family as IpFamily};
    use tokio::time::Instant;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(healthz: &Healthz, path: &str) -> (u16, String) {
        let request = Request::builder().uri(path).body(axum::body::Body::empty());
        let response = healthz
            .clone()
            .router()
            .oneshot(request.unwrap())
            .await
            .unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn healthz_depends_on_eligibility_and_both_on_health() {
        let health = Health::new(IpFamily::ALL, Duration::from_secs(30));
        let mut registry = Registry::default();
        let healthz = Healthz::register(health.clone(), &mut registry);
        let both = async || {
            let (healthz_status, healthz_body) = ask(&healthz, "/healthz").await;
            let (livez_status, livez_body) = ask(&healthz, "/livez").await;
            assert!(healthz_body.contains("\"nodeEligible\":"), "{healthz_body}");
            assert!(!livez_body.contains("nodeEligible"), "{livez_body}");
            (healthz_status, livez_status)
        };
        assert_eq!(
            both().await,
            (503, 200),
            "no table says that the node is eligible"
        );
        health.set_eligible(true);
        assert_eq!(both().await, (200, 200));
        health.queued(Instant::now());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(both().await, (503, 503));
        health.served(Instant::now(), Families::NONE, SystemTime::now());
        health.set_eligible(false);
        assert_eq!(both().await, (503, 200));

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 3",
            "kubeproxy_proxy_livez_total{code=\"200\"} 3",
            "kubeproxy_proxy_livez_total{code=\"503\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }

    #[test]
    fn body_has_the_format_of_kube_proxy() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let start = Instant::now();
        let health = Health::new(IpFamily::ALL, Duration::from_secs(30));
        health.queued(start);
        health.served(start, [IpFamily::V6].into_iter().collect(), at(1));
        let report = health.report(start + Duration::from_secs(60), at(1_700_000_000));
        let body = serde_json::to_string(&Body::new(&report, Some(true))).unwrap();
        assert_eq!(
            body,
            "{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"currentTime\":\"2023-11-14T22:13:20Z\",\
             \"nodeEligible\":true,\"healthy\":false,\"status\":{\
             \"IPv4\":{\"lastUpdated\":\"2023-11-14T22:13:20Z\",\"healthy\":true},\
             \"IPv6\":{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"healthy\":false}}}"
        );
    }
}
