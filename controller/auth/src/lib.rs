// SPDX-License-Identifier: Apache-2.0

//! The identity of agents, relays and edge controllers: certificates, tokens and their reviews, and refusals.

#![forbid(unsafe_code)]

mod certified;
mod identity;
mod issuer;
mod issuers;
mod keys;
mod refusals;
mod reviews;
#[cfg(any(test, feature = "testing"))]
#[allow(
    missing_debug_implementations,
    missing_docs,
    clippy::unwrap_used,
    reason = "for tests"
)]
pub mod testing;
mod token;

pub use certified::{Certified, CertifiedError};
pub use identity::{Authentication, Identity, authenticate, revoked};
pub use issuer::{IssuerError, unverified_issuer};
pub use issuers::{Issuer, Issuers, SharedKey};
pub use keys::{KeySet, KeySetError, KeyWanted};
pub use refusals::{Refusal, RefusalReason, Refusals};
pub use reviews::{Due, Reviewed, Reviews, Verdict};
pub use token::{TokenConfig, TokenRole, TokenVerifier};
