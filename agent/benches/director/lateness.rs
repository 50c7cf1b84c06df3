// SPDX-License-Identifier: Apache-2.0

//! Lateness of checks at their start, by the agent's own metric.

use anyhow::{Context as _, Result};

use crate::director::{Director, Program};

const BUCKET: &str = "portolan_agent_check_lateness_seconds_bucket{le=\"";

/// Upper bounds in seconds, and the number of checks that were no later.
#[derive(Debug)]
pub(crate) struct Lateness(Vec<(f64, u64)>);

impl Lateness {
    /// None for a program without this metric.
    pub(crate) fn read(program: Program, director: &Director<'_>) -> Result<Option<Self>> {
        if program == Program::Keepalived {
            return Ok(None);
        }
        let page = director.metrics()?;
        let buckets = page.lines().filter_map(|line| {
            let (bound, count) = line.strip_prefix(BUCKET)?.split_once("\"} ")?;
            let bound = match bound {
                "+Inf" => f64::INFINITY,
                bound => bound.parse().ok()?,
            };
            Some((bound, count.parse().ok()?))
        });
        let buckets: Vec<_> = buckets.collect();
        let last = buckets.last().context("no metric of lateness")?;
        (last.0 == f64::INFINITY).then_some(()).context("no +Inf")?;
        Ok(Some(Self(buckets)))
    }

    /// The bound of the bucket that has the 99th percentile of the checks since `before`, in milliseconds.
    pub(crate) fn p99(&self, before: &Self) -> f64 {
        let since: Vec<_> = self
            .0
            .iter()
            .zip(&before.0)
            .map(|((bound, after), (_, before))| (bound, after - before))
            .collect();
        let all = since.last().map_or(0, |(_, count)| *count);
        let found = since.iter().find(|(_, count)| count * 100 >= all * 99);
        found.map_or(f64::INFINITY, |(bound, _)| **bound * 1e3)
    }
}
