// SPDX-License-Identifier: Apache-2.0

//! Reasons of refusals that a client acts on, as metadata of a gRPC status.
//!
//! The message of a status is for people. Clients that know no reason, or not this one, go by the
//! status code alone.

use tonic::Status;
use tonic::metadata::MetadataValue;

/// The metadata key of a [`Reason`].
pub const REASON: &str = "portolan-reason";

/// A refusal that a client treats differently from others of the same status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The agent's table is newer than the controller's sources. With `UNAVAILABLE`: the connection
    /// is sound, and another controller may be as far as the agent.
    AgentAhead,
    /// The node opens streams faster than it may. With `RESOURCE_EXHAUSTED`.
    ReconnectRate,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::AgentAhead, Self::ReconnectRate];

    /// The reason as it stands in the metadata.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AgentAhead => "agent-ahead",
            Self::ReconnectRate => "reconnect-rate",
        }
    }

    /// The reason that a status states, if it is a known one.
    #[must_use]
    pub fn of(status: &Status) -> Option<Self> {
        let stated = status.metadata().get(REASON)?.to_str().ok()?;
        Self::ALL
            .into_iter()
            .find(|reason| reason.as_str() == stated)
    }

    /// States the reason in a status.
    #[must_use]
    pub fn state(self, mut status: Status) -> Status {
        let value = MetadataValue::from_static(self.as_str());
        status.metadata_mut().insert(REASON, value);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_the_wire() {
        for reason in Reason::ALL {
            let sent = reason.state(Status::unavailable("for people"));
            let response = sent.into_http::<()>();
            let received = Status::from_header_map(response.headers()).unwrap();
            assert_eq!(Reason::of(&received), Some(reason));
        }
    }

    #[test]
    fn unknown_and_absent_reasons_are_none() {
        let mut status = Status::unavailable(Reason::AgentAhead.as_str());
        assert_eq!(Reason::of(&status), None);
        let newer = MetadataValue::from_static("a-later-one");
        status.metadata_mut().insert(REASON, newer);
        assert_eq!(Reason::of(&status), None);
    }
}
