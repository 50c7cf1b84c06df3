// SPDX-License-Identifier: Apache-2.0

//! With a receiver of OTLP over gRPC.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::trace::SpanProcessor as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::*;

mod secure;

#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn receiver() -> (Receiver, String) {
    let receiver = Receiver::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let service = TraceServiceServer::new(receiver.clone());
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (receiver, endpoint)
}

const PROGRAM: Program<'static> = Program {
    name: "portolan-agent",
    version: "1.2.3",
    instance: "node-a",
};
const CHANGE: Change = Change {
    epoch: 5,
    revision: 9,
};

fn args(endpoint: &str) -> OtlpArgs {
    OtlpArgs {
        otlp_endpoint: Some(endpoint.to_owned()),
        otlp_sample: 1.0,
        ..OtlpArgs::default()
    }
}

fn spans_to(endpoint: &str, otlp_sample: f64) -> Spans {
    let args = OtlpArgs {
        otlp_sample,
        ..args(endpoint)
    };
    Spans::new(&args, endpoint, PROGRAM).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_a_change_are_received_as_one_trace() {
    let (receiver, endpoint) = receiver().await;
    let spans = spans_to(&endpoint, 1.0);
    let end = Instant::now();
    let start = end - Duration::from_millis(40);
    spans.export(CHANGE, Span::new("change", start, end));
    let send = Span::new("send", start, end).at("node-a").within("change");
    spans.export(CHANGE, send.producer().with("portolan.records", 3));
    let receive = Span::new("receive", start, end).at("node-a");
    let receive = receive.after("send", "node-a").consumer();
    spans.export(CHANGE, receive.failed(Some("no".to_owned())));
    // Revisions of no controller have no trace.
    let none = Change { epoch: 0, ..CHANGE };
    spans.export(none, Span::new("change", start, end));
    tokio::task::spawn_blocking(move || spans.processor.shutdown())
        .await
        .unwrap()
        .unwrap();
    let requests = receiver.0.lock().unwrap();
    let resource = requests[0].resource_spans[0].resource.clone().unwrap();
    let names: Vec<_> = resource.attributes.iter().map(|a| &*a.key).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let scopes = requests.iter().flat_map(|request| &request.resource_spans);
    let spans = scopes
        .flat_map(|of| &of.scope_spans)
        .flat_map(|of| &of.spans);
    let spans: Vec<_> = spans.collect();
    let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
    assert_eq!(names, ["change", "send", "receive"]);
    let trace = CHANGE.trace_id().to_bytes();
    assert!(spans.iter().all(|span| span.trace_id == trace));
    assert!(spans[0].parent_span_id.is_empty());
    assert_eq!(spans[1].parent_span_id, spans[0].span_id);
    assert_eq!(spans[2].parent_span_id, spans[1].span_id);
    let length = spans[0].end_time_unix_nano - spans[0].start_time_unix_nano;
    assert_eq!(length / 1_000_000, 40);
    assert_eq!(spans[2].status.as_ref().unwrap().message, "no");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_holds_nothing_up() {
    // Nobody listens there.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let spans = spans_to(&endpoint, 1.0);
    let began = Instant::now();
    for revision in 0..100_000 {
        let change = Change { epoch: 1, revision };
        spans.export(change, Span::new("change", began, began));
    }
    // More than the queue holds.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn without_an_endpoint_there_are_no_spans() {
    assert!(start(&OtlpArgs::default(), PROGRAM).unwrap().is_none());
    assert!(spans().is_none());
    stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_are_not_sampled_are_not_wanted() {
    let spans = spans_to("http://127.0.0.1:1", 0.0);
    assert!(!spans.wants(CHANGE));
}
