// SPDX-License-Identifier: Apache-2.0

//! Addresses of controllers on the command line.

use tonic::transport::Uri;

/// An address that is not `host:port`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected host:port")]
pub struct AddressError(String);

/// Parses the address of a controller, `host:port`, into the URI for tonic.
///
/// # Errors
/// If it is anything else.
pub fn endpoint(address: &str) -> Result<Uri, AddressError> {
    let bad = || AddressError(address.to_owned());
    let uri: Uri = format!("http://{address}").parse().map_err(|_| bad())?;
    let plain = uri.port_u16().is_some() && uri.path() == "/" && uri.query().is_none();
    plain.then_some(uri).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controllers_address_has_a_host_and_a_port() {
        for good in [
            "10.0.0.1:9443",
            "[fd00::1]:9443",
            "portolan.kube-system.svc:9443",
        ] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "10.0.0.1",
            "http://10.0.0.1:9443",
            "10.0.0.1:9443/x",
            "a b:1",
        ] {
            let error = endpoint(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{bad}: {error}");
        }
    }
}
