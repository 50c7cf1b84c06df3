// SPDX-License-Identifier: Apache-2.0

//! One HTTP request.

mod judge;

use std::borrow::Cow;
use std::net::{Ipv6Addr, SocketAddr};

use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::rt::TokioIo;
use portolan_health::Outcome;
use portolan_model::check::{HttpProbe, HttpVersion, TlsProbe};

use super::connection::{Io, Opened, beside};
use super::tls;
use crate::fault::{Checked, Stop};
use crate::{Context, Target, socket};

/// The `User-Agent` of probes.
pub(super) const AGENT: &str = concat!("portolan/", env!("CARGO_PKG_VERSION"));

pub(crate) async fn run(probe: &HttpProbe, target: &Target, context: &Context) -> Checked<Outcome> {
    let host = host(probe, target.address);
    let request = request(probe, &host)?;
    let protocol = match probe.version {
        HttpVersion::Http2 => "h2",
        HttpVersion::Http10 | HttpVersion::Http11 => "http/1.1",
    };
    let given = probe.host.as_deref().map(without_port);
    let stream = connect(target, probe.tls.as_ref(), given, protocol, context).await?;
    let is_http2 = probe.version == HttpVersion::Http2;
    let mut opened = Opened::new(stream, is_http2).await.map_err(failure)?;
    let sent = opened.send(request);
    let outcome = beside(exchange(sent, probe, context), opened.connection).await;
    drop(opened.tasks);
    outcome
}

async fn exchange(
    sent: BoxFuture<'static, hyper::Result<Response<Incoming>>>,
    probe: &HttpProbe,
    context: &Context,
) -> Checked<Outcome> {
    let answer = sent.await.map_err(failure)?;
    judge::head(probe, &answer, context.patterns())?;
    judge::body(probe, answer.into_body(), context.patterns()).await?;
    Ok(Outcome::pass())
}

/// Connects, with TLS if the probe has it. The protocol is offered unless the probe names others. Boxed
/// with one lifetime, or the compiler cannot prove that the future may change threads.
pub(super) fn connect<'a>(
    target: &'a Target,
    tls: Option<&'a TlsProbe>,
    host: Option<&'a str>,
    protocol: &'static str,
    context: &'a Context,
) -> BoxFuture<'a, Checked<TokioIo<Box<dyn Io>>>> {
    Box::pin(async move {
        let stream = socket::connect(target, true).await?;
        let Some(tls) = tls else {
            let stream: Box<dyn Io> = Box::new(stream);
            return Ok(TokioIo::new(stream));
        };
        let mut tls = tls.clone();
        if tls.alpn.is_empty() {
            tls.alpn.push(protocol.to_owned());
        }
        let stream = tls::handshake(stream, &tls, host, target.address.ip(), context).await?;
        let chosen = stream.get_ref().1.alpn_protocol();
        if protocol == "h2" && chosen != Some(b"h2") {
            return Err(Stop::fails("the server does not choose h2"));
        }
        let stream: Box<dyn Io> = Box::new(stream);
        Ok(TokioIo::new(stream))
    })
}

fn request(probe: &HttpProbe, host: &str) -> Checked<Request<Full<Bytes>>> {
    let bad = |what: &str| Stop::ours(format_args!("{what} is malformed"));
    let scheme = if probe.tls.is_some() { "https" } else { "http" };
    let (version, uri) = match probe.version {
        HttpVersion::Http10 => (Version::HTTP_10, probe.path.clone()),
        HttpVersion::Http11 => (Version::HTTP_11, probe.path.clone()),
        HttpVersion::Http2 => (Version::HTTP_2, format!("{scheme}://{host}{}", probe.path)),
    };
    let mut request = Request::new(Full::default());
    *request.method_mut() =
        Method::from_bytes(probe.method.as_bytes()).map_err(|_| bad("the method"))?;
    *request.uri_mut() = Uri::try_from(uri).map_err(|_| bad("the path"))?;
    *request.version_mut() = version;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    if probe.version != HttpVersion::Http2 {
        headers.insert(
            HOST,
            HeaderValue::try_from(host).map_err(|_| bad("the host"))?,
        );
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    for (name, value) in &probe.headers {
        let value = HeaderValue::try_from(value).map_err(|_| bad(name))?;
        let name = HeaderName::try_from(name).map_err(|_| bad(name))?;
        headers.insert(name, value);
    }
    Ok(request)
}

/// The host of a request: the configured one, or the address, with its port if that is not the usual one.
fn host(probe: &HttpProbe, address: SocketAddr) -> String {
    let usual = if probe.tls.is_some() { 443 } else { 80 };
    match (&probe.host, address) {
        (Some(host), _) => in_brackets(host).into_owned(),
        (None, SocketAddr::V4(v4)) if v4.port() == usual => v4.ip().to_string(),
        (None, SocketAddr::V6(v6)) if v6.port() == usual => format!("[{}]", v6.ip()),
        (None, address) => address.to_string(),
    }
}

/// A host as requests have it: a mere IPv6 address gets brackets.
fn in_brackets(host: &str) -> Cow<'_, str> {
    match is_ipv6(host) {
        true => format!("[{host}]").into(),
        false => host.into(),
    }
}

/// The name or address of a host, for the handshake.
fn without_port(host: &str) -> &str {
    if is_ipv6(host) {
        return host;
    }
    let in_brackets = host.strip_prefix('[');
    if let Some((address, _)) = in_brackets.and_then(|rest| rest.split_once(']')) {
        return address;
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Returns `true` if a host is an IPv6 address without brackets, whose colons part no port.
fn is_ipv6(host: &str) -> bool {
    host.parse::<Ipv6Addr>().is_ok()
}

/// An error of the connection or of the protocol.
#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn failure(error: hyper::Error) -> Stop {
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return Stop::fails(crate::fault::plain(io));
        }
        cause = inner.source();
    }
    match error.is_incomplete_message() {
        true => Stop::fails("closed before the end of the answer"),
        false => Stop::fails(format_args!("HTTP: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_its_port_unless_it_is_the_usual_one() {
        let mut probe = HttpProbe::default();
        let host_of = |probe: &HttpProbe, address: &str| host(probe, address.parse().unwrap());
        assert_eq!(host_of(&probe, "10.0.0.1:80"), "10.0.0.1");
        assert_eq!(host_of(&probe, "10.0.0.1:8080"), "10.0.0.1:8080");
        assert_eq!(host_of(&probe, "[fd00::1]:80"), "[fd00::1]");
        assert_eq!(host_of(&probe, "[fd00::1]:443"), "[fd00::1]:443");
        probe.tls = Some(TlsProbe::default());
        assert_eq!(host_of(&probe, "[fd00::1]:443"), "[fd00::1]");
        probe.host = Some("www.example.org".to_owned());
        assert_eq!(host_of(&probe, "10.0.0.1:8080"), "www.example.org");
        for (host, expected) in [
            ("fd00::1", "[fd00::1]"),
            ("[fd00::1]", "[fd00::1]"),
            ("[fd00::1]:8443", "[fd00::1]:8443"),
        ] {
            probe.host = Some(host.to_owned());
            assert_eq!(host_of(&probe, "10.0.0.1:8080"), expected);
        }
    }

    #[test]
    fn a_server_name_has_no_port() {
        assert_eq!(without_port("www.example.org:8443"), "www.example.org");
        assert_eq!(without_port("www.example.org"), "www.example.org");
        for address in ["[fd00::1]:443", "[fd00::1]", "fd00::1"] {
            assert_eq!(without_port(address), "fd00::1");
        }
        assert_eq!(without_port("192.0.2.1:443"), "192.0.2.1");
    }
}
