// SPDX-License-Identifier: Apache-2.0

//! Reasons for failed requests and ended watches.

use std::time::Duration;

use tonic::Code;

/// The reason for a failed request, or for the end of a watch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// etcd cannot be reached, or refused.
    #[error(transparent)]
    Request(#[from] etcd_client::Error),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// An answer without a revision.
    #[error("an answer without a revision")]
    NoRevision,
    /// The revisions from which the watch should begin are compacted.
    #[error("etcd has compacted the revisions before {0}")]
    Compacted(i64),
    /// The watch was cancelled.
    #[error("etcd has cancelled the watch: {0}")]
    Cancelled(String),
    /// The stream of a watch has ended.
    #[error("the watch has ended")]
    Ended,
    /// etcd has an earlier revision than before: it was restored from a backup, or is another one.
    #[error("etcd is at revision {theirs}, and was at {ours} before")]
    WentBack {
        /// The last revision seen before.
        ours: i64,
        /// Its revision now.
        theirs: i64,
    },
}

impl EtcdError {
    /// Returns `true` if another member may do better.
    #[must_use]
    pub fn is_of_member(&self) -> bool {
        !matches!(self, Self::Compacted(_) | Self::WentBack { .. })
    }

    /// Returns `true` if an answer was larger than this side takes. The same question has the same answer, at every
    /// member.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        matches!(self, Self::Request(etcd_client::Error::GRpcStatus(status))
            if status.code() == Code::OutOfRange && status.message().contains("decoded message"))
    }

    /// Returns `true` if no answer came, so that a write may be done all the same. Other errors are
    /// refusals.
    #[must_use]
    pub fn is_without_answer(&self) -> bool {
        match self {
            // A revision is missing only in the answer to a write that is done.
            Self::Timeout(_) | Self::NoRevision => true,
            Self::Request(etcd_client::Error::GRpcStatus(status)) => matches!(
                status.code(),
                // The last two are streams that broke on the way.
                Code::Unavailable
                    | Code::Unknown
                    | Code::DeadlineExceeded
                    | Code::Internal
                    | Code::Cancelled
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;

    #[test]
    fn a_refusal_is_an_answer() {
        let status = |code| {
            let status = Status::new(code, "");
            EtcdError::Request(etcd_client::Error::GRpcStatus(status))
        };
        for code in [
            Code::Unavailable,
            Code::Unknown,
            Code::DeadlineExceeded,
            Code::Internal,
            Code::Cancelled,
        ] {
            assert!(status(code).is_without_answer(), "{code:?}");
        }
        for code in [
            Code::InvalidArgument,
            Code::PermissionDenied,
            Code::ResourceExhausted,
        ] {
            assert!(!status(code).is_without_answer(), "{code:?}");
        }
        assert!(EtcdError::Timeout(Duration::from_secs(1)).is_without_answer());
        assert!(!EtcdError::Compacted(1).is_without_answer());
    }

    #[test]
    fn an_answer_that_is_too_large_is_none_of_a_revision_out_of_range() {
        let status = |text| {
            let status = Status::out_of_range(text);
            EtcdError::Request(etcd_client::Error::GRpcStatus(status))
        };
        let large = "Error, decoded message length too large: found 70000000 bytes";
        assert!(status(large).is_too_large());
        let future = "etcdserver: mvcc: required revision is a future revision";
        assert!(!status(future).is_too_large());
        assert!(!EtcdError::Ended.is_too_large());
    }
}
