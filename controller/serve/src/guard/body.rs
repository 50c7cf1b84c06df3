//! A body that ends when it must.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Frame, SizeHint};
use prost::bytes::Bytes;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;

use crate::accept::Admission;

/// A service's own body, until that ends or `end` completes; as long the connection may stay.
pub(super) struct LimitedBody {
    /// `None` when it has ended.
    body: Option<Body>,
    end: Pin<Box<dyn Future<Output = Status> + Send>>,
    _admission: Option<Admission>,
}

impl LimitedBody {
    pub(super) fn new(
        body: Body,
        admission: Option<Admission>,
        end: impl Future<Output = Status> + Send + 'static,
    ) -> Self {
        Self {
            body: Some(body),
            end: Box::pin(end),
            _admission: admission,
        }
    }
}

impl http_body::Body for LimitedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Self { body, end, .. } = &mut *self;
        let Some(body) = body else {
            return Poll::Ready(None);
        };
        let Poll::Ready(status) = end.as_mut().poll(context) else {
            return Pin::new(body).poll_frame(context);
        };
        self.body = None;
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
