// SPDX-License-Identifier: Apache-2.0

//! Files of the host that a check names.

use super::{Probe, TlsProbe, Verify};

impl Probe {
    /// The fields that name files for TLS: `tls.ca`, `http.tls.key`.
    #[must_use]
    pub fn tls_files(&self) -> Vec<String> {
        let (within, tls) = match self {
            Self::Tls(tls) => ("tls", Some(tls)),
            Self::Http(http) => ("http.tls", http.tls.as_ref()),
            Self::Grpc(grpc) => ("grpc.tls", grpc.tls.as_ref()),
            Self::Tcp(_)
            | Self::Udp(_)
            | Self::Dns(_)
            | Self::Icmp
            | Self::Exec(_)
            | Self::Agent(_)
            | Self::File(_) => return Vec::new(),
        };
        let names = tls.into_iter().flat_map(file_fields);
        names.map(|name| format!("{within}.{name}")).collect()
    }
}

/// The fields of a TLS client that are paths.
fn file_fields(tls: &TlsProbe) -> impl Iterator<Item = &'static str> + use<> {
    let fields = [
        ("ca", matches!(tls.verify, Verify::Ca(_))),
        ("certificate", tls.certificate.is_some()),
        ("key", tls.key.is_some()),
    ];
    let named = fields.into_iter().filter(|(_, is_named)| *is_named);
    named.map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::super::{GrpcProbe, HttpProbe};
    use super::*;

    #[test]
    fn paths_of_a_tls_client_are_named_wherever_it_is() {
        let with_ca = TlsProbe {
            verify: Verify::Ca("/etc/ca.pem".to_owned()),
            ..TlsProbe::default()
        };
        let with_key = TlsProbe {
            verify: Verify::System,
            certificate: Some("/etc/tls.crt".to_owned()),
            key: Some("/etc/tls.key".to_owned()),
            ..TlsProbe::default()
        };
        let http = |tls| {
            Probe::Http(Box::new(HttpProbe {
                tls,
                ..HttpProbe::default()
            }))
        };
        assert_eq!(Probe::Tls(with_ca.clone()).tls_files(), ["tls.ca"]);
        let both = ["http.tls.certificate", "http.tls.key"];
        assert_eq!(http(Some(with_key)).tls_files(), both);
        let grpc = Probe::Grpc(GrpcProbe {
            tls: Some(with_ca),
            ..GrpcProbe::default()
        });
        assert_eq!(grpc.tls_files(), ["grpc.tls.ca"]);
        let without = [
            Probe::Tls(TlsProbe::default()),
            http(Some(TlsProbe::default())),
            http(None),
            Probe::Icmp,
        ];
        for probe in without {
            assert_eq!(probe.tls_files(), [""; 0]);
        }
    }
}
