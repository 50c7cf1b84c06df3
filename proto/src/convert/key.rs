// SPDX-License-Identifier: Apache-2.0

//! Record keys and protocols.

use std::sync::Arc;

use portolan_model::{Protocol, RecordKey};

use super::{DecodeError, DecodeErrorKind};
use crate::v1;

/// A key without its cluster.
#[must_use]
pub fn encode_key(key: &RecordKey) -> v1::RecordKey {
    let protocol = match key.protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    };
    v1::RecordKey {
        namespace: key.namespace.as_ref().into(),
        service: key.service.as_ref().into(),
        port: key.port.as_ref().into(),
        protocol: protocol.into(),
    }
}

/// The key within a cluster.
///
/// # Errors
/// If the protocol is unknown.
pub fn decode_key(key: &v1::RecordKey, cluster: &Arc<str>) -> Result<RecordKey, DecodeError> {
    let unknown = DecodeError::new("key.protocol", DecodeErrorKind::Unknown(key.protocol));
    let protocol = match v1::Protocol::try_from(key.protocol) {
        Ok(v1::Protocol::Tcp) => Protocol::Tcp,
        Ok(v1::Protocol::Udp) => Protocol::Udp,
        Ok(v1::Protocol::Sctp) => Protocol::Sctp,
        Ok(v1::Protocol::Unspecified) | Err(_) => return Err(unknown),
    };
    Ok(RecordKey {
        cluster: Arc::clone(cluster),
        namespace: key.namespace.as_str().into(),
        service: key.service.as_str().into(),
        port: key.port.as_str().into(),
        protocol,
    })
}

/// The key that a record or a node's lists must have.
pub(super) fn required_key(
    key: Option<&v1::RecordKey>,
    cluster: &Arc<str>,
) -> Result<RecordKey, DecodeError> {
    let missing = DecodeError::new("key", DecodeErrorKind::Missing);
    decode_key(key.ok_or(missing)?, cluster)
}
