// SPDX-License-Identifier: Apache-2.0

//! Response body that can be ended from outside.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body::{Frame, SizeHint};
use prost::bytes::Bytes;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;

use crate::session::SessionControl;

/// A service's own body, until it ends or its keeper ends it.
pub(super) struct LimitedBody {
    /// `None` after the end.
    body: Option<Body>,
    control: Arc<SessionControl>,
    _keeper: AbortOnDropHandle<()>,
}

impl LimitedBody {
    /// Wraps a body. `keeper` is the task that ends the stream by way of `control`, even while the
    /// connection does not poll the body.
    pub(super) fn new(
        body: Body,
        control: Arc<SessionControl>,
        keeper: AbortOnDropHandle<()>,
    ) -> Self {
        Self {
            body: Some(body),
            control,
            _keeper: keeper,
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
        let Self { body, control, .. } = &mut *self;
        let Some(inner) = body else {
            return Poll::Ready(None);
        };
        control.register(context.waker().clone());
        if let Some(how) = control.ended() {
            let status = how.clone().err().unwrap_or_else(|| Status::ok(""));
            *body = None;
            let mut trailers = HeaderMap::new();
            status.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let polled = Pin::new(inner).poll_frame(context);
        control.polled(matches!(polled, Poll::Ready(Some(Ok(_)))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
