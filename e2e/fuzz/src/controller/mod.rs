//! What the controller decodes: what agents say and show, and objects.
//!
//! The first byte of an input says which; the rest is for it.

pub mod objects;
pub mod signer;
pub mod stream;
pub mod token;

/// What became of an input: for tests, to see that the seeds reach what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Streams that were let in.
    pub admitted: usize,
    /// Frames that were sent.
    pub frames: usize,
    /// Records and node lists that were computed.
    pub computed: usize,
    /// Objects that were refused, or of which something was left out.
    pub troubled: usize,
}

/// The first byte of an input.
pub mod kind {
    /// Messages of one stream, each with its length before it.
    pub const MESSAGES: u8 = b'm';
    /// The body of a request, as it is.
    pub const BODY: u8 = b'b';
    /// The text of a token.
    pub const TOKEN: u8 = b't';
    /// The claims of a token, as JSON; it is signed.
    pub const CLAIMS: u8 = b'c';
    /// Objects as JSON, one a line.
    pub const OBJECTS: u8 = b'o';
}

/// Plays an input.
///
/// # Panics
/// If something does not hold.
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
