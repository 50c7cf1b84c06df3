// SPDX-License-Identifier: Apache-2.0

//! The status page below `/status/`: view models of what dumps show, as pages of `portolan-status`.

mod ages;
mod answer;
mod overview;
mod pulse;
mod services;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use futures_util::{Stream, StreamExt as _};
use portolan_runtime::{BUILD, Pages, Readiness, Vital};
use portolan_status::{
    Asked, Clusters, Frame, ListQuery, Nodes, PREFIX, Services, State as NodeState, Tab, asset,
    digest_text, hint, select_nodes, select_problems,
};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::WatchStream;

use crate::debug::{Debug, Failure};
use ages::Ages;
use answer::{Answered, asset_of, secured};
use pulse::Pulse;

/// Browsers that may follow changes at once. Each takes a connection of the admin port.
const FOLLOWERS: usize = 32;
/// Length of a stream of changes, below the limit of connections of the admin port. The browser opens
/// another one.
const FOLLOW: Duration = Duration::from_secs(50);
/// Pause before it does.
const RETRY: Duration = Duration::from_secs(1);
/// Period at which new problems are noticed.
const NOTICE: Duration = Duration::from_secs(2);

/// The pages, and what they need to know between two requests.
#[derive(Debug, Clone)]
pub(crate) struct StatusPages {
    debug: Debug,
    readiness: Readiness,
    ages: Arc<Mutex<Ages>>,
    pulse: Pulse,
    followers: Arc<Semaphore>,
}

impl StatusPages {
    fn new(debug: Debug, readiness: Readiness) -> Self {
        Self {
            debug,
            readiness,
            ages: Arc::default(),
            pulse: Pulse::default(),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        }
    }

    /// The pages, and the task that notices problems.
    pub(crate) fn start(debug: Debug, readiness: Readiness, vital: &Vital) -> Pages {
        let this = Self::new(debug, readiness);
        vital.spawn_endless("ages of problems", this.clone().watch_problems());
        this.pages()
    }

    /// The pages, for the admin server.
    fn pages(&self) -> Pages {
        let at = |page: &str| format!("{PREFIX}/{page}");
        let routes = Router::new()
            .route(PREFIX, get(|| async { Redirect::permanent("/status/") }))
            .route(&at(""), get(overview))
            .route(&at("nodes"), get(nodes))
            .route(&at("node"), get(node))
            .route(&at("services"), get(services))
            .route(&at("service"), get(service))
            .route(&at("ask"), get(ask))
            .route(&at("clusters"), get(clusters))
            .route(&at("problems"), get(problems))
            .route(&at("events"), get(events))
            .route(&at("{file}"), get(file))
            .with_state(self.clone())
            .layer(map_response(secured));
        Pages { routes, hint }
    }

    /// Notices when problems appear and disappear. Never ends.
    async fn watch_problems(self) {
        let mut ticks = interval(NOTICE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.notice();
        }
    }

    /// All problems, those of objects first.
    fn notice(&self) -> Vec<String> {
        let texts = {
            let trouble = self.debug.trouble.lock();
            let trouble = trouble.unwrap_or_else(PoisonError::into_inner);
            let all = trouble.objects.iter().chain(&trouble.files);
            all.cloned().collect::<Vec<_>>()
        };
        self.ages().update(Instant::now(), &texts);
        texts
    }

    fn ages(&self) -> std::sync::MutexGuard<'_, Ages> {
        self.ages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frame of a page about a cluster, or about all. It is made before the page: a change while the page is made
    /// is one that the digest lacks.
    fn frame(&self, cluster: &str) -> Frame {
        let pending = self.readiness.pending();
        Frame {
            version: BUILD.version.to_owned(),
            cluster: (!cluster.is_empty()).then(|| cluster.to_owned()),
            unready: pending.into_iter().map(str::to_owned).collect(),
            digest: self.digest(),
        }
    }

    fn digest(&self) -> u64 {
        overview::digest(&self.debug, &self.readiness)
    }

    /// The state for one cluster: that of the query, or the first.
    fn scoped(&self, cluster: &str) -> Result<Debug, Failure> {
        let cluster = match cluster {
            "" => self.debug.clusters.names().into_iter().next(),
            named => Some(self.debug.served(Some(named))?),
        };
        Ok(Debug {
            cluster: cluster.unwrap_or_default(),
            ..self.debug.clone()
        })
    }

    /// A page that says why there is no answer.
    fn failed(&self, tab: Tab, failure: &Failure) -> Answered {
        let page = portolan_status::error(&self.frame(""), tab, &failure.message);
        Answered(failure.status(), page)
    }
}

type Found = Result<Answered, Answered>;

async fn overview(State(pages): State<StatusPages>) -> Answered {
    let frame = pages.frame("");
    Answered(StatusCode::OK, pages.overview().page(&frame))
}

async fn clusters(State(pages): State<StatusPages>) -> Answered {
    let frame = pages.frame("");
    let agents = pages.debug.sessions.snapshot();
    let rows = overview::clusters(&pages.debug, &agents);
    Answered(StatusCode::OK, Clusters { rows }.page(&frame))
}

async fn nodes(State(pages): State<StatusPages>, RawQuery(query): RawQuery) -> Found {
    let query = query.unwrap_or_default();
    let query = ListQuery::parse(&query, &Nodes::COLUMNS, &NodeState::NAMES);
    let query = query.map_err(|error| pages.failed(Tab::Nodes, &error.into()))?;
    let frame = pages.frame("");
    let agents = pages.debug.sessions.snapshot();
    let nodes = select_nodes(agents.iter().map(overview::node_row).collect(), query);
    Ok(Answered(StatusCode::OK, nodes.page(&frame)))
}

async fn node(State(pages): State<StatusPages>, RawQuery(query): RawQuery) -> Found {
    let failed = |failure| pages.failed(Tab::Nodes, &failure);
    let [cluster, name] = answer::parameters(&query.unwrap_or_default(), ["cluster", "name"]);
    let debug = pages.scoped(&cluster).map_err(failed)?;
    let frame = pages.frame(&debug.cluster);
    let agent = debug.agent(&debug.key(&name));
    let agent = agent.ok_or_else(|| {
        let message = format!("node {name}: its agent has not connected");
        failed(Failure::not_found(message))
    })?;
    let details = overview::node_details(&debug, &agent);
    Ok(Answered(StatusCode::OK, details.page(&frame)))
}

async fn services(State(pages): State<StatusPages>, RawQuery(query): RawQuery) -> Found {
    let failed = |failure| pages.failed(Tab::Services, &failure);
    let query = query.unwrap_or_default();
    let query = ListQuery::parse(&query, &Services::COLUMNS, &[]);
    let query = query.map_err(|error| failed(error.into()))?;
    let debug = pages.scoped(&query.cluster).map_err(failed)?;
    let frame = pages.frame(&debug.cluster);
    let services = services::list(&debug, query);
    Ok(Answered(StatusCode::OK, services.page(&frame)))
}

async fn service(State(pages): State<StatusPages>, RawQuery(query): RawQuery) -> Found {
    let failed = |failure| pages.failed(Tab::Services, &failure);
    let names = ["cluster", "namespace", "name", "node"];
    let [cluster, namespace, name, node] = answer::parameters(&query.unwrap_or_default(), names);
    let debug = pages.scoped(&cluster).map_err(failed)?;
    let frame = pages.frame(&debug.cluster);
    let details = services::details(&debug, &namespace, &name, &node).map_err(failed)?;
    Ok(Answered(StatusCode::OK, details.page(&frame)))
}

async fn ask(State(pages): State<StatusPages>, RawQuery(query): RawQuery) -> Found {
    let failed = |failure| pages.failed(Tab::Ask, &failure);
    let query = query.unwrap_or_default();
    let names = ["cluster", "address", "protocol", "node"];
    let [cluster, address, protocol, node] = answer::parameters(&query, names);
    let debug = pages.scoped(&cluster).map_err(failed)?;
    let asked = Asked {
        cluster: debug.cluster.to_string(),
        address: address.trim().to_owned(),
        protocol,
        node: node.trim().to_owned(),
    };
    let frame = pages.frame(&debug.cluster);
    let (status, ask) = answer::ask(&debug, asked).await;
    Ok(Answered(status, ask.page(&frame)))
}

async fn problems(State(pages): State<StatusPages>, RawQuery(query): RawQuery) -> Found {
    let query = query.unwrap_or_default();
    let query = ListQuery::parse(&query, &[], &[]);
    let query = query.map_err(|error| pages.failed(Tab::Problems, &error.into()))?;
    let frame = pages.frame("");
    let problems = select_problems(pages.problems(), query);
    Ok(Answered(StatusCode::OK, problems.page(&frame)))
}

/// Tells the browser when something has changed.
async fn events(State(pages): State<StatusPages>) -> Response {
    let Ok(place) = Arc::clone(&pages.followers).try_acquire_owned() else {
        let message = "too many browsers follow changes";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    };
    let looked_at = pages.clone();
    let changes = pages.pulse.subscribe(move || looked_at.digest());
    let events = WatchStream::new(changes).map(move |digest| {
        let _ = &place;
        let event = Event::default().event("change").retry(RETRY);
        Ok::<_, Infallible>(event.data(digest_text(digest)))
    });
    Sse::new(bounded(events)).into_response()
}

/// A stream that ends before the server would cut it.
fn bounded<S: Stream>(events: S) -> impl Stream<Item = S::Item> {
    events.take_until(sleep(FOLLOW))
}

async fn file(Path(name): Path<String>) -> Response {
    match asset(&name) {
        Some(asset) => asset_of(asset),
        None => (StatusCode::NOT_FOUND, "no such page").into_response(),
    }
}

#[cfg(test)]
mod tests;
