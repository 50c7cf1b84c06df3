// SPDX-License-Identifier: Apache-2.0

//! Counters of sessions.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

macro_rules! counters {
    ($($(#[$doc:meta])+ $variant:ident => $field:ident,)+) => {
        /// Totals since the start of the controller.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
        pub struct Counters {
            $($(#[$doc])+ pub $field: u64,)+
        }

        /// Selects one of [`Counters`].
        #[derive(Debug, Clone, Copy)]
        pub(crate) enum Counter {
            $($variant,)+
        }

        /// Live values of [`Counters`].
        #[derive(Debug, Default)]
        pub(crate) struct LiveCounters {
            $($field: AtomicU64,)+
        }

        impl LiveCounters {
            pub(crate) fn add(&self, counter: Counter, by: usize) {
                let counter = match counter {
                    $(Counter::$variant => &self.$field,)+
                };
                counter.fetch_add(by as u64, Ordering::Relaxed);
            }

            pub(crate) fn read(&self) -> Counters {
                Counters {
                    $($field: self.$field.load(Ordering::Relaxed),)+
                }
            }
        }
    };
}

counters! {
    /// Streams with an acceptable Hello.
    Sessions => sessions,
    /// Streams closed for a newer one of the same node.
    Replaced => replaced,
    /// Streams closed because the agent violated the protocol.
    Violations => violations,
    /// Streams whose agent already had the table, from this controller or another.
    ResumedEqual => resumed_equal,
    /// Streams whose agent was sent only the changes it had missed.
    Resumed => resumed,
    /// Streams whose agent was sent only the buckets of records that differed.
    ResumedBuckets => resumed_buckets,
    /// Streams closed because the agent stalled.
    Stalled => stalled,
    /// Snapshots sent, at the start of a stream or to an agent that fell too far behind.
    Snapshots => snapshots,
    /// Frames sent.
    Frames => frames,
    /// Commits sent.
    Commits => commits,
    /// Records, lists and deletions sent.
    Items => items,
}
