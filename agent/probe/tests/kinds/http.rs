// SPDX-License-Identifier: Apache-2.0

use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan_health::Outcome;
use portolan_model::check::{HttpProbe, HttpVersion, Probe};

use crate::rig::{answering, check, failure, refusing, run, serve, silent, slow, times_out};

fn http(probe: HttpProbe) -> Probe {
    Probe::Http(Box::new(probe))
}

async fn told(probe: HttpProbe, answer: &str) -> Outcome {
    run(&check(http(probe)), answering(answer).await).await
}

type Seen = Arc<Mutex<Vec<(Version, String, Option<String>)>>>;

/// A real server for one version, which notes version, path and host.
async fn server(is_h2: bool, seen: Seen) -> std::net::SocketAddr {
    serve(move |stream| {
        let seen = Arc::clone(&seen);
        let service = service_fn(move |request: Request<Incoming>| {
            let host = request
                .headers()
                .get("host")
                .map(|host| host.to_str().unwrap().to_owned());
            let path = request.uri().path().to_owned();
            seen.lock().unwrap().push((request.version(), path, host));
            async { Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from("all is well")))) }
        });
        async move {
            let io = TokioIo::new(stream);
            if is_h2 {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(io, service).await;
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(io, service).await;
            }
            Ok(())
        }
    })
    .await
}

#[tokio::test]
async fn every_version_is_spoken_to_a_real_server() {
    for (version, expected) in [
        (HttpVersion::Http10, Version::HTTP_10),
        (HttpVersion::Http11, Version::HTTP_11),
        (HttpVersion::Http2, Version::HTTP_2),
    ] {
        let seen = Seen::default();
        let address = server(version == HttpVersion::Http2, Arc::clone(&seen)).await;
        let probe = HttpProbe {
            version,
            path: "/healthz".to_owned(),
            host: Some("www.example.org".to_owned()),
            body_regex: Some("is well$".to_owned()),
            ..HttpProbe::default()
        };
        assert_eq!(
            run(&check(http(probe)), address).await,
            Outcome::pass(),
            "{version:?}"
        );
        let host = (version != HttpVersion::Http2).then(|| "www.example.org".to_owned());
        let request = (expected, "/healthz".to_owned(), host);
        assert_eq!(*seen.lock().unwrap(), [request]);
    }
}

#[tokio::test]
async fn status_headers_and_body_are_judged_in_this_order() {
    let answer = "HTTP/1.1 503 No\r\nX-Role: standby\r\nContent-Length: 4\r\n\r\ngone";
    let strict = HttpProbe {
        expect_headers: vec![("x-role".to_owned(), "^active$".to_owned())],
        body_regex: Some("^here".to_owned()),
        ..HttpProbe::default()
    };
    let mut lax = strict.clone();
    let outcome = told(strict, answer).await;
    assert_eq!(failure(&outcome), "status 503, not one of 200-299");
    lax.statuses = vec![(200, 204), (503, 503)];
    assert_eq!(
        failure(&told(lax.clone(), answer).await),
        "header x-role does not match \"^active$\""
    );
    lax.expect_headers[0].1 = "stand".to_owned();
    assert_eq!(
        failure(&told(lax.clone(), answer).await),
        "body does not match \"^here\""
    );
    lax.body_regex = None;
    lax.body_not_regex = Some("gone".to_owned());
    assert_eq!(
        failure(&told(lax.clone(), answer).await),
        "body matches \"gone\""
    );
    lax.body_not_regex = Some("here".to_owned());
    assert_eq!(told(lax.clone(), answer).await, Outcome::pass());
    lax.statuses = vec![(200, 204), (301, 301)];
    assert_eq!(
        failure(&told(lax, answer).await),
        "status 503, not one of 200-204, 301"
    );
}

#[tokio::test]
async fn the_digest_is_that_of_the_whole_body() {
    let body = "x".repeat(100_000);
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{body}");
    let digest = |text: &str| <md5::Md5 as md5::Digest>::digest(text).into();
    let with = |body_md5| HttpProbe {
        body_md5: Some(body_md5),
        ..HttpProbe::default()
    };
    assert_eq!(told(with(digest(&body)), &answer).await, Outcome::pass());
    let other = told(with(digest("other")), &answer).await;
    assert_eq!(failure(&other), "body has another MD5 digest");
}

#[tokio::test]
async fn patterns_see_64_kib_of_the_body() {
    let with = |pattern: &str| HttpProbe {
        body_regex: Some(pattern.to_owned()),
        ..HttpProbe::default()
    };
    let body = |at: usize| {
        format!(
            "HTTP/1.0 200 OK\r\n\r\n{}END{}",
            "x".repeat(at - 3),
            "y".repeat(99_999)
        )
    };
    assert_eq!(told(with("END"), &body(65_536)).await, Outcome::pass());
    assert_eq!(
        failure(&told(with("END"), &body(65_537)).await),
        "body does not match \"END\""
    );
}

#[tokio::test]
async fn lying_servers_fail() {
    for (answer, reason) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
            "closed",
        ),
        ("HTTP/1.1 200", "closed"),
        ("", "closed"),
        ("SSH-2.0-OpenSSH_9.2\r\n", "HTTP"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "Invalid chunk",
        ),
    ] {
        let outcome = told(HttpProbe::default(), answer).await;
        assert!(
            failure(&outcome).starts_with(reason),
            "{answer:?}: {outcome:?}"
        );
    }
    let h2 = HttpProbe {
        version: HttpVersion::Http2,
        ..HttpProbe::default()
    };
    let outcome = told(h2, "HTTP/1.1 200 OK\r\n\r\n").await;
    assert!(failure(&outcome).starts_with("HTTP"), "{outcome:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let answer = "HTTP/1.1 301 Moved\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n";
    let outcome = told(HttpProbe::default(), answer).await;
    assert_eq!(failure(&outcome), "status 301, not one of 200-299");
}

#[tokio::test]
async fn the_time_is_that_of_the_whole_exchange() {
    let probe = || http(HttpProbe::default());
    times_out(probe(), silent().await).await;
    times_out(probe(), slow("HTTP/1.1 200 OK\r\n").await).await;
    // The head comes at once, the body byte by byte.
    let server = serve(|mut stream| async move {
        use tokio::io::AsyncWriteExt as _;
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            .await?;
        loop {
            stream.write_all(b"x").await?;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    times_out(probe(), server).await;
    let h2 = HttpProbe {
        version: HttpVersion::Http2,
        ..HttpProbe::default()
    };
    times_out(http(h2), silent().await).await;
}

#[tokio::test]
async fn a_refusal_fails_and_a_malformed_request_is_our_fault() {
    let refused = run(&check(http(HttpProbe::default())), refusing().await).await;
    assert_eq!(failure(&refused), "connection refused");
    let bad = HttpProbe {
        headers: vec![("X-Bad".to_owned(), "a\nb".to_owned())],
        ..HttpProbe::default()
    };
    assert_eq!(
        told(bad, "").await,
        Outcome::no_verdict("X-Bad is malformed")
    );
}
