// SPDX-License-Identifier: Apache-2.0

//! The controller's fuzz target: messages and tokens of agents, and objects.
//!
//! The first byte of an input selects its [`kind`]; the rest is the input of that kind.

pub mod objects;
pub mod signer;
pub mod stream;
pub mod token;

/// The result of an input, from which tests see that the seeds reach their targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Accepted streams.
    pub admitted: usize,
    /// Frames sent.
    pub frames: usize,
    /// Computed records and node lists.
    pub computed: usize,
    /// Objects that were refused, or of which a part was left out.
    pub troubled: usize,
}

/// The first byte of an input.
pub mod kind {
    /// Messages of one stream, each preceded by its length.
    pub const MESSAGES: u8 = b'm';
    /// The body of a request.
    pub const BODY: u8 = b'b';
    /// The text of a token.
    pub const TOKEN: u8 = b't';
    /// The claims of a token, as JSON; the target signs them.
    pub const CLAIMS: u8 = b'c';
    /// Objects as JSON, one a line.
    pub const OBJECTS: u8 = b'o';
}

/// Runs an input.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Outcome {
    match input.split_first() {
        Some((&kind::MESSAGES, rest)) => stream::messages(rest),
        Some((&kind::BODY, rest)) => stream::body(rest),
        Some((&kind::TOKEN, rest)) => token::text(rest),
        Some((&kind::CLAIMS, rest)) => token::claims(rest),
        Some((&kind::OBJECTS, rest)) => objects::check(rest),
        _ => Outcome::default(),
    }
}
