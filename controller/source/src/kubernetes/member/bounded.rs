// SPDX-License-Identifier: Apache-2.0

//! Bounds of what the API server of another cluster answers. The client of kube reads a whole list, and a whole
//! event of a watch, into memory.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use tower::{BoxError, Layer, Service};

/// The largest answer that is no watch, in bytes. A page has 500 objects, of some 10 KiB each when they are large.
pub(super) const LIST_BYTES: usize = 64 << 20;

/// The largest event of a watch, in bytes. An object has at most 1.5 MiB in etcd, and can be longer in JSON.
pub(super) const EVENT_BYTES: usize = 8 << 20;

/// An answer that is larger than its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an answer of more than {0} bytes, the bound of another cluster")]
pub(super) struct TooLong(usize);

/// Bounds answers.
#[derive(Debug, Clone, Copy)]
pub(super) struct BoundedLayer;

impl<S> Layer<S> for BoundedLayer {
    type Service = Bounded<S>;

    fn layer(&self, service: S) -> Bounded<S> {
        Bounded(service)
    }
}

/// A service with a [`BoundedLayer`].
#[derive(Debug, Clone)]
pub(super) struct Bounded<S>(S);

impl<S, A, B> Service<Request<A>> for Bounded<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<BoundedBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let mut query = request.uri().query().unwrap_or_default().split('&');
        let bound = match query.any(|part| part.starts_with("watch=")) {
            true => Bound::Event,
            false => Bound::Answer,
        };
        let answer = self.0.call(request);
        answer
            .map(move |answered| answered.map(|answer| answer.map(|body| bound.of(body))))
            .boxed()
    }
}

/// Bounded part of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bound {
    /// All of it.
    Answer,
    /// Each line.
    Event,
}

impl Bound {
    fn of<B>(self, body: B) -> BoundedBody
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        BoundedBody {
            body: body.map_err(Into::into).boxed_unsync(),
            bound: self,
            count: 0,
        }
    }
}

/// A body that ends with [`TooLong`] beyond its bound.
#[derive(Debug)]
pub(super) struct BoundedBody {
    body: UnsyncBoxBody<Bytes, BoxError>,
    bound: Bound,
    /// Bytes of the whole, or of the line so far.
    count: usize,
}

impl BoundedBody {
    fn count(&mut self, data: &[u8]) -> Result<(), TooLong> {
        let most = match self.bound {
            Bound::Answer => LIST_BYTES,
            Bound::Event => EVENT_BYTES,
        };
        let lines = data.split(|byte| self.bound == Bound::Event && *byte == b'\n');
        for (index, part) in lines.enumerate() {
            self.count = if index == 0 { self.count } else { 0 } + part.len();
            if self.count > most {
                return Err(TooLong(most));
            }
        }
        Ok(())
    }
}

impl Body for BoundedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            other => return Poll::Ready(other),
        };
        if let Some(data) = frame.data_ref()
            && let Err(error) = self.count(data)
        {
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body as Answer;
    use futures_util::stream;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    const MIB: usize = 1 << 20;

    /// The number of bytes that arrive of an answer in parts of 1 MiB, and whether it ended well.
    async fn read(query: &str, parts: usize, end: &'static [u8]) -> (usize, bool) {
        let answered = service_fn(move |_: Request<()>| async move {
            let part = [&vec![b' '; MIB - end.len()][..], end].concat();
            let parts = (0..parts).map(move |_| Ok::<_, Infallible>(part.clone()));
            Ok::<_, Infallible>(Response::new(Answer::from_stream(stream::iter(parts))))
        });
        let request = Request::get(format!("/api/v1/services?{query}"));
        let service = BoundedLayer.layer(answered);
        let response = service.oneshot(request.body(()).unwrap()).await.unwrap();
        let (mut body, mut count) = (response.into_body(), 0);
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => count += frame.data_ref().unwrap().len(),
                Err(error) => {
                    assert!(error.is::<TooLong>(), "{error}");
                    return (count, false);
                }
            }
        }
        (count, true)
    }

    #[tokio::test]
    async fn a_list_without_end_is_an_error() {
        assert_eq!(read("limit=500", 64, b"\n").await, (64 * MIB, true));
        assert_eq!(read("limit=500", 1_000, b"\n").await, (64 * MIB, false));
    }

    #[tokio::test]
    async fn events_are_bounded_and_not_their_number() {
        assert_eq!(read("watch=true&a=b", 200, b"\n").await, (200 * MIB, true));
        assert_eq!(read("watch=true&a=b", 1_000, b"").await, (8 * MIB, false));
    }
}
