// SPDX-License-Identifier: Apache-2.0

//! Objects and losses as the guard counts them.

use std::sync::Arc;
use std::time::Instant;

/// The size of a kind, or of a part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Objects.
    pub objects: usize,
    /// Ready endpoints of EndpointSlices.
    pub ready: usize,
}

impl Size {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            objects: self.objects + other.objects,
            ready: self.ready + other.ready,
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_sub(other.objects),
            ready: self.ready.saturating_sub(other.ready),
        }
    }
}

/// The part of an object that the guard looks at. Empty for kinds other than EndpointSlice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The number of ready endpoints.
    pub ready: usize,
    /// The Service of the slice: another slice of the same Service may replace it.
    pub service: Option<Arc<str>>,
    /// Hashes of the ready endpoints' addresses. An endpoint that moves is in two slices of its
    /// Service for a while, and is not lost when it leaves one. Ready endpoints without a hash are
    /// counted one by one.
    pub addresses: Arc<[u64]>,
}

/// A withheld loss.
#[derive(Debug)]
pub(super) struct Loss<P> {
    /// The rest of the object; `None` for a deletion.
    pub(super) left: Option<Facts>,
    /// The event to pass on when the loss is believed.
    pub(super) news: P,
}

/// The losses of one kind that are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLoss {
    /// The size of the losses.
    pub lost: Size,
    /// The size of the kind with them.
    pub of: Size,
    /// The time at which they count as confirmed; `None` for never.
    pub until: Option<Instant>,
}
