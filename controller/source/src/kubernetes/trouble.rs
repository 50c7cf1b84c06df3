// SPDX-License-Identifier: Apache-2.0

//! Errors of a follower, and their consequences.

use kube::core::Status;

use crate::Closed;

/// Reason why following stopped for now.
#[derive(Debug)]
pub(super) enum Stop {
    /// The sink's reader is gone.
    Closed(Closed),
    /// To be tried again.
    Trouble(Trouble),
}

/// The error.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The server refused the request, or is unreachable.
    #[error(transparent)]
    Client(#[from] kube::Error),
    /// The server ended the watch with a reason.
    #[error("the server ended the watch: {} ({})", .0.message, .0.code)]
    Told(Box<Status>),
    #[error("an object without a version")]
    NoVersion,
    #[error("a watch that ended as soon as it began")]
    Short,
    #[error("nothing came for longer than a watch lasts")]
    Silent,
    #[error("more than {most} objects, the bound of another cluster; the last ones stay")]
    TooMany {
        /// The bound.
        most: usize,
    },
    #[error("a listing that ended too early")]
    Unfinished,
    #[error("the server does not answer")]
    Unanswered,
    #[error("the server went back from version {ours} to {theirs}: it was restored from a backup")]
    WentBack {
        /// The last version seen.
        ours: u64,
        /// The newest one that it has.
        theirs: u64,
    },
}

impl Trouble {
    /// Returns `true` if a new listing is needed: the server forgot the version, or ended the watch
    /// for a permanent reason.
    pub(super) fn needs_listing(&self) -> bool {
        match self {
            Self::Client(kube::Error::Api(status)) => status.code == 410,
            Self::Told(status) => !matches!(status.code, 429 | 500..=599),
            Self::NoVersion | Self::Silent | Self::TooMany { .. } | Self::WentBack { .. } => true,
            Self::Client(_) | Self::Short | Self::Unfinished | Self::Unanswered => false,
        }
    }

    /// Returns `true` if there was no answer.
    pub(super) fn is_unreachable(&self) -> bool {
        match self {
            Self::Client(error) => !matches!(error, kube::Error::Api(_)),
            _ => matches!(self, Self::Unanswered),
        }
    }

    /// Returns `true` if the server has no such kind.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Client(kube::Error::Api(status)) if status.code == 404)
    }

    /// Returns `true` if the server does not permit it.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Client(kube::Error::Api(status)) if matches!(status.code, 401 | 403))
    }

    /// Returns `true` if the server will never accept the request. It accepts a streamed listing
    /// for which its storage is too old (etcd before 3.4.25), and then ends it with 500.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::Client(kube::Error::Api(status)) => {
                matches!(status.code, 400 | 405 | 406 | 415 | 422)
            }
            Self::Told(status) => matches!(status.code, 400 | 422 | 500),
            _ => false,
        }
    }
}

impl From<Closed> for Stop {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<kube::Error> for Stop {
    fn from(error: kube::Error) -> Self {
        Self::Trouble(error.into())
    }
}
