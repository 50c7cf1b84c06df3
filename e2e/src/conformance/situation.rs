// SPDX-License-Identifier: Apache-2.0

//! Places and conditions of a Service's endpoints.

use std::fmt;

/// One of the two nodes, and the pod on it that may be an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The node that traffic from outside and to node ports arrives at.
    Here,
    /// The other node.
    There,
}

impl Place {
    /// Both places.
    pub const ALL: [Self; 2] = [Self::Here, Self::There];

    /// The number of the node in the rig.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::Here => 0,
            Self::There => 1,
        }
    }

    /// The zone that the node is in.
    #[must_use]
    pub const fn zone(self) -> &'static str {
        match self {
            Self::Here => "zone1",
            Self::There => "zone2",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Here => "here",
            Self::There => "there",
        })
    }
}

/// The conditions of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Ready.
    Ready,
    /// Terminating, but serving.
    Terminating,
    /// Neither ready nor serving.
    NotReady,
}

/// An endpoint: the pod at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The place of the pod.
    pub place: Place,
    /// Its conditions.
    pub state: State,
    /// The place whose zone it is hinted for.
    pub hint: Option<Place>,
}

impl Endpoint {
    const fn ready(place: Place) -> Self {
        Self::with(place, State::Ready)
    }

    const fn with(place: Place, state: State) -> Self {
        let hint = None;
        Self { place, state, hint }
    }

    const fn hinted(place: Place, zone_of: Place) -> Self {
        Self {
            hint: Some(zone_of),
            ..Self::ready(place)
        }
    }
}

/// The endpoints of a Service as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Situation {
    /// One on each node, both ready.
    Both,
    /// One here, ready.
    HereOnly,
    /// One there, ready.
    ThereOnly,
    /// None.
    Nowhere,
    /// One on each node, both terminating but serving.
    Terminating,
    /// One on each node: terminating here, ready there.
    HereTerminating,
    /// One there, terminating.
    ThereTerminating,
    /// Each hinted for its own node's zone.
    ZoneHints,
    /// Each hinted for the other node's zone.
    CrossedHints,
    /// One hinted for the zone there. The other has no hint, which voids both.
    PartHinted,
    /// One on each node: not ready here, ready there.
    HereNotReady,
    /// One on each node, none ready.
    NoneReady,
}

use Place::{Here, There};
use State::{NotReady, Terminating};

impl Situation {
    /// All situations.
    pub const ALL: [Self; 12] = [
        Self::Both,
        Self::HereOnly,
        Self::ThereOnly,
        Self::Nowhere,
        Self::Terminating,
        Self::HereTerminating,
        Self::ThereTerminating,
        Self::ZoneHints,
        Self::CrossedHints,
        Self::PartHinted,
        Self::HereNotReady,
        Self::NoneReady,
    ];

    /// The endpoints, at most one for each place.
    #[must_use]
    pub fn endpoints(self) -> Vec<Endpoint> {
        match self {
            Self::Both => vec![Endpoint::ready(Here), Endpoint::ready(There)],
            Self::HereOnly => vec![Endpoint::ready(Here)],
            Self::ThereOnly => vec![Endpoint::ready(There)],
            Self::Nowhere => vec![],
            Self::Terminating => vec![
                Endpoint::with(Here, Terminating),
                Endpoint::with(There, Terminating),
            ],
            Self::HereTerminating => {
                vec![Endpoint::with(Here, Terminating), Endpoint::ready(There)]
            }
            Self::ThereTerminating => vec![Endpoint::with(There, Terminating)],
            Self::ZoneHints => vec![Endpoint::hinted(Here, Here), Endpoint::hinted(There, There)],
            Self::CrossedHints => {
                vec![Endpoint::hinted(Here, There), Endpoint::hinted(There, Here)]
            }
            Self::PartHinted => vec![Endpoint::ready(Here), Endpoint::hinted(There, There)],
            Self::HereNotReady => vec![Endpoint::with(Here, NotReady), Endpoint::ready(There)],
            Self::NoneReady => vec![
                Endpoint::with(Here, NotReady),
                Endpoint::with(There, NotReady),
            ],
        }
    }

    /// The situation's part of a row's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::HereOnly => "here-only",
            Self::ThereOnly => "there-only",
            Self::Nowhere => "nowhere",
            Self::Terminating => "terminating",
            Self::HereTerminating => "here-terminating",
            Self::ThereTerminating => "there-terminating",
            Self::ZoneHints => "zone-hints",
            Self::CrossedHints => "crossed-hints",
            Self::PartHinted => "part-hinted",
            Self::HereNotReady => "here-not-ready",
            Self::NoneReady => "none-ready",
        }
    }
}
