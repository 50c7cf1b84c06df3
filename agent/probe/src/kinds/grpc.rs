// SPDX-License-Identifier: Apache-2.0

//! gRPC's health service.

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use portolan_health::Outcome;
use portolan_model::check::GrpcProbe;
use prost::Message as _;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::connection::{Opened, beside};
use super::http::{AGENT, connect, failure};
use crate::fault::{Checked, Stop};
use crate::{Context, Target};

const PATH: &str = "/grpc.health.v1.Health/Check";
/// The header of a message: a byte for compression, four for the length.
const HEADER: usize = 5;
/// Longest answer; a right one has two bytes beyond the header.
const MAX_ANSWER: usize = 1 << 10;

pub(crate) async fn run(probe: &GrpcProbe, target: &Target, context: &Context) -> Checked<Outcome> {
    let request = request(probe, target)?;
    let stream = connect(target, probe.tls.as_ref(), None, "h2", context).await?;
    let mut opened = Opened::new(stream, true).await.map_err(failure)?;
    let sent = opened.send(request);
    let exchange = async { judge(sent.await.map_err(failure)?).await };
    let outcome = beside(exchange, opened.connection).await;
    drop(opened.tasks);
    outcome
}

fn request(probe: &GrpcProbe, target: &Target) -> Checked<Request<Full<Bytes>>> {
    let scheme = if probe.tls.is_some() { "https" } else { "http" };
    let service = probe.service.clone();
    let message = HealthCheckRequest { service }.encode_to_vec();
    let length = u32::try_from(message.len()).map_err(Stop::ours)?;
    let framed = [&[0], &length.to_be_bytes()[..], &message].concat();
    let mut request = Request::new(Full::new(Bytes::from(framed)));
    *request.method_mut() = Method::POST;
    let uri = format!("{scheme}://{}{PATH}", target.address);
    *request.uri_mut() = Uri::try_from(uri).map_err(Stop::ours)?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Ok(request)
}

async fn judge(answer: Response<hyper::body::Incoming>) -> Checked<Outcome> {
    if !answer.status().is_success() {
        let status = answer.status().as_u16();
        return Err(Stop::fails(format_args!("HTTP status {status}, not 200")));
    }
    let (head, mut body) = answer.into_parts();
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map_err(failure)?.into_data() {
            Ok(more) if data.len() + more.len() > MAX_ANSWER => {
                return Err(Stop::fails("an answer of more than 1 KiB"));
            }
            Ok(more) => data.extend_from_slice(&more),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    grpc_status(trailers.as_ref().unwrap_or(&head.headers))?;
    let message = data
        .get(HEADER..)
        .ok_or_else(|| Stop::fails("no message in the answer"))?;
    let malformed = |error| Stop::fails(format_args!("the answer is malformed: {error}"));
    let status = HealthCheckResponse::decode(message)
        .map_err(malformed)?
        .status();
    match status {
        ServingStatus::Serving => Ok(Outcome::pass()),
        other => Err(Stop::fails(format_args!(
            "{}, not SERVING",
            other.as_str_name()
        ))),
    }
}

fn grpc_status(headers: &HeaderMap) -> Checked<()> {
    let text = |name| {
        headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
    };
    match text("grpc-status").as_deref() {
        Some("0") => Ok(()),
        None => Err(Stop::fails("no gRPC status in the answer")),
        Some(code) => {
            let message = text("grpc-message").unwrap_or_default();
            Err(Stop::fails(format_args!("gRPC status {code}: {message}")))
        }
    }
}
