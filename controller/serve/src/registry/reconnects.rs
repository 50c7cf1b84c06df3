// SPDX-License-Identifier: Apache-2.0

//! Rate limit of a node's streams.
//!
//! Each new stream costs a handshake, a lookup and a first transition. A node with a valid
//! credential that reconnects in a loop is held to its rate.

use std::time::{Duration, Instant};

use portolan_runtime::Rate;

/// Refusal of a stream whose node has used up its rate, with the time until the next token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node: streams begin too often; the next one can in {} ms", .0.as_millis())]
pub(crate) struct RetryAfter(pub(crate) Duration);

/// A node's token bucket, kept across its streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamBudget {
    tokens: f64,
    at: Instant,
}

impl StreamBudget {
    /// A full bucket.
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        Self {
            tokens: f64::from(rate.burst),
            at: now,
        }
    }

    /// Takes a token for a stream, or returns the wait until there is one.
    pub(super) fn spend(&mut self, rate: Rate, now: Instant) -> Result<(), RetryAfter> {
        let per_second = f64::from(rate.per_second.max(1));
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        self.tokens = (self.tokens + earned).min(f64::from(rate.burst.max(1)));
        self.at = now;
        if self.tokens < 1.0 {
            let missing = (1.0 - self.tokens) / per_second;
            return Err(RetryAfter(Duration::from_secs_f64(missing)));
        }
        self.tokens -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_gets_its_burst_and_then_its_rate() {
        let rate = Rate {
            per_second: 2,
            burst: 10,
        };
        let begin = Instant::now();
        let mut budget = StreamBudget::new(rate, begin);
        let mut admitted = 0;
        for ms in 0..10_000 {
            let now = begin + Duration::from_millis(ms);
            match budget.spend(rate, now) {
                Ok(()) => admitted += 1,
                Err(RetryAfter(wait)) => assert!(wait <= Duration::from_millis(500)),
            }
        }
        assert_eq!(admitted, 10 + 19);
        let later = begin + Duration::from_secs(60);
        assert!((0..10).all(|_| budget.spend(rate, later).is_ok()));
        let RetryAfter(wait) = budget.spend(rate, later).unwrap_err();
        assert!(budget.spend(rate, later + wait).is_ok());
    }
}
