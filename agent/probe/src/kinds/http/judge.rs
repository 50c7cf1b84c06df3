// SPDX-License-Identifier: Apache-2.0

//! Requirements of an HTTP answer.

use std::fmt::Write as _;

use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::Incoming;
use md5::{Digest as _, Md5};
use portolan_model::check::HttpProbe;

use super::failure;
use crate::fault::{Checked, Stop};
use crate::patterns::Patterns;

/// The part of a body that patterns see, in bytes.
const MAX_BODY: usize = 64 << 10;

/// Checks status and header fields.
pub(super) fn head<T>(probe: &HttpProbe, answer: &Response<T>, patterns: &Patterns) -> Checked<()> {
    let status = answer.status().as_u16();
    let fits = |range: &(u16, u16)| (range.0..=range.1).contains(&status);
    if !probe.statuses.iter().any(fits) {
        let expected = ranges(&probe.statuses);
        return Err(Stop::fails(format_args!(
            "status {status}, not one of {expected}"
        )));
    }
    for (name, pattern) in &probe.expect_headers {
        let regex = patterns.get(pattern)?;
        let values = answer.headers().get_all(name.as_str());
        if !values.iter().any(|value| regex.is_match(value.as_bytes())) {
            return Err(Stop::fails(format_args!(
                "header {name} does not match {pattern:?}"
            )));
        }
    }
    Ok(())
}

fn ranges(statuses: &[(u16, u16)]) -> String {
    let mut text = String::new();
    for (low, high) in statuses {
        let comma = if text.is_empty() { "" } else { ", " };
        let written = match low == high {
            true => write!(text, "{comma}{low}"),
            false => write!(text, "{comma}{low}-{high}"),
        };
        written.expect("a String takes all");
    }
    text
}

/// Reads the body, and checks it. Of a longer one than patterns see, only a digest needs the rest.
pub(super) async fn body(
    probe: &HttpProbe,
    mut body: Incoming,
    patterns: &Patterns,
) -> Checked<()> {
    let (mut seen, mut digest) = (Vec::new(), Md5::new());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(failure)?.into_data() else {
            continue;
        };
        digest.update(&data);
        let room = MAX_BODY - seen.len();
        seen.extend_from_slice(&data[..room.min(data.len())]);
        if seen.len() == MAX_BODY && probe.body_md5.is_none() {
            break;
        }
    }
    if let Some(pattern) = &probe.body_regex
        && !patterns.get(pattern)?.is_match(&seen)
    {
        return Err(Stop::fails(format_args!("body does not match {pattern:?}")));
    }
    if let Some(pattern) = &probe.body_not_regex
        && patterns.get(pattern)?.is_match(&seen)
    {
        return Err(Stop::fails(format_args!("body matches {pattern:?}")));
    }
    match probe.body_md5 {
        Some(expected) if digest.finalize()[..] != expected => {
            Err(Stop::fails("body has another MD5 digest"))
        }
        _ => Ok(()),
    }
}
