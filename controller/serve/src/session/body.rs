// SPDX-License-Identifier: Apache-2.0

//! The response body of a stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame};
use prost::bytes::Bytes;
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use super::outbound::Outbound;

/// Chunks of messages, followed by a status in the trailers.
#[derive(Debug)]
pub(crate) struct StreamBody {
    /// `None` after the end.
    outbound: Option<Outbound>,
}

impl StreamBody {
    pub(super) fn new(outbound: Outbound) -> Self {
        Self {
            outbound: Some(outbound),
        }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(outbound) = &mut self.outbound else {
            return Poll::Ready(None);
        };
        let status = match ready!(outbound.poll_chunk(context)) {
            Ok(Some(chunk)) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
            Ok(None) => Status::ok(""),
            Err(status) => status,
        };
        self.outbound = None;
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.outbound.is_none()
    }
}
