//! The controller's side: streams a zone to agents.
//!
//! What tonic generates would encode each message for each agent, into a buffer of its own; this
//! gives the connection frames that all of them share.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::Frame as BodyFrame;
use prost::bytes::Bytes;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codec::BufferSettings;
use tonic::codegen::http::header::CONTENT_TYPE;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::feed::{Cursor, Feed};
use super::pb::{Frame, WatchRequest};
use crate::shared::SharedZone;

/// The longest request, in bytes, and how long it may take to come.
const REQUEST_BYTES: usize = 4_096;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The service `portolan.dns.v1.Names`.
#[derive(Debug, Clone)]
pub struct NamesService {
    feed: Arc<Feed>,
}

impl NamesService {
    /// The service, and the task that it needs: its streams say what that has made.
    pub fn new(zone: Arc<SharedZone>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let feed = Arc::new(Feed::new(zone));
        let running = Arc::clone(&feed).run();
        (Self { feed }, running)
    }

    async fn watch(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        if request.uri().path() != "/portolan.dns.v1.Names/Watch" {
            return Err(Status::unimplemented("no such method"));
        }
        let decoder = ProstCodec::<Frame, WatchRequest>::raw_decoder(BufferSettings::new(
            REQUEST_BYTES,
            REQUEST_BYTES,
        ));
        let body = request.into_body();
        let mut messages = Streaming::new_request(decoder, body, None, Some(REQUEST_BYTES));
        let request = timeout(REQUEST_TIMEOUT, messages.message()).await;
        let request = request.map_err(|_| Status::deadline_exceeded("no request in time"))??;
        let request = request.ok_or_else(|| Status::invalid_argument("no request"))?;
        let stream = NamesStream {
            feed: self.feed,
            cursor: Cursor::Begin(request.digest),
        };
        let mut response = Response::new(Body::new(NamesBody(Box::pin(stream.next()))));
        let content_type = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        Ok(response)
    }
}

impl NamedService for NamesService {
    const NAME: &'static str = "portolan.dns.v1.Names";
}

impl Service<Request<Body>> for NamesService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watch = self.clone().watch(request);
        Box::pin(async { Ok(watch.await.unwrap_or_else(Status::into_http)) })
    }
}

/// One agent's stream.
struct NamesStream {
    feed: Arc<Feed>,
    cursor: Cursor,
}

impl NamesStream {
    /// Waits for the next message, and comes back with it.
    async fn next(mut self) -> (Self, Bytes) {
        let feed = Arc::clone(&self.feed);
        loop {
            let news = feed.news();
            if let Some(frame) = feed.next(&mut self.cursor) {
                return (self, frame);
            }
            news.await;
        }
    }
}

/// A stream as the body of a response, which has no end.
struct NamesBody(Pin<Box<dyn Future<Output = (NamesStream, Bytes)> + Send>>);

impl http_body::Body for NamesBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, Status>>> {
        let (stream, frame) = ready!(self.0.as_mut().poll(context));
        self.0 = Box::pin(stream.next());
        Poll::Ready(Some(Ok(BodyFrame::data(frame))))
    }
}
