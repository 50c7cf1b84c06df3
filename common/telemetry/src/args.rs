// SPDX-License-Identifier: Apache-2.0

//! Flags of both programs.

use std::path::PathBuf;

use portolan_tls::ClientFiles;
use tonic::transport::Uri;

use crate::exporter::OtlpError;

/// Where spans are sent.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub struct OtlpArgs {
    /// Send a span for each step of a change, from the source to the kernel, to the OpenTelemetry collector at
    /// http://HOST:PORT or https://HOST:PORT (OTLP over gRPC). Default: no spans.
    #[arg(long, env = "PORTOLAN_OTLP_ENDPOINT", value_name = "URL", value_parser = endpoint)]
    pub otlp_endpoint: Option<String>,

    /// CA certificates that verify the collector's certificate, in PEM. Reloaded when the file changes. Needed with
    /// https:// in --otlp-endpoint.
    #[arg(
        long,
        env = "PORTOLAN_OTLP_CA",
        value_name = "FILE",
        requires = "otlp_endpoint"
    )]
    pub otlp_ca: Option<PathBuf>,

    /// The client certificate for the collector, in PEM. Reloaded when the file changes.
    #[arg(
        long,
        env = "PORTOLAN_OTLP_CERT",
        value_name = "FILE",
        requires_all = ["otlp_ca", "otlp_key"]
    )]
    pub otlp_cert: Option<PathBuf>,

    /// The private key of --otlp-cert, in PEM. Reloaded when the file changes.
    #[arg(
        long,
        env = "PORTOLAN_OTLP_KEY",
        value_name = "FILE",
        requires = "otlp_cert"
    )]
    pub otlp_key: Option<PathBuf>,

    /// Part of the changes that have spans, from 0 to 1. Controllers and agents choose the same ones.
    #[arg(
        long,
        env = "PORTOLAN_OTLP_SAMPLE",
        value_name = "PART",
        default_value = "1",
        value_parser = part
    )]
    pub otlp_sample: f64,
}

impl OtlpArgs {
    /// Checks combinations of flags that clap cannot express. Reads no file.
    ///
    /// # Errors
    /// If the endpoint's scheme and the files contradict each other.
    pub fn validate(&self) -> Result<(), OtlpError> {
        let Some(endpoint) = &self.otlp_endpoint else {
            return Ok(());
        };
        let uri: Option<Uri> = endpoint.parse().ok();
        let is_secure = uri.is_some_and(|uri| uri.scheme_str() == Some("https"));
        match is_secure == self.otlp_ca.is_some() {
            true => Ok(()),
            false => Err(OtlpError::Scheme(endpoint.clone())),
        }
    }

    /// Reads the files of TLS, as a run does at its start. Blocks.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub fn check_files(&self) -> Result<(), OtlpError> {
        match self.client_files() {
            Some(files) => files.open("otlp").map(drop).map_err(OtlpError::Files),
            None => Ok(()),
        }
    }

    /// The files of the client; `None` without TLS.
    pub(crate) fn client_files(&self) -> Option<ClientFiles> {
        Some(ClientFiles {
            ca: self.otlp_ca.clone()?,
            identity: self.otlp_cert.clone().zip(self.otlp_key.clone()),
        })
    }
}

/// A value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("expected {0}")]
struct Expected(&'static str);

fn endpoint(text: &str) -> Result<String, Expected> {
    let uri: Option<Uri> = text.parse().ok();
    let is_good = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some()
            && uri.port().is_some()
    });
    is_good
        .then(|| text.to_owned())
        .ok_or(Expected("http://HOST:PORT or https://HOST:PORT"))
}

fn part(text: &str) -> Result<f64, Expected> {
    let part: Option<f64> = text.parse().ok();
    let good = part.filter(|part| (0.0..=1.0).contains(part));
    good.ok_or(Expected("a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Cli {
        #[command(flatten)]
        otlp: OtlpArgs,
    }

    fn parse(args: &[&str]) -> Option<OtlpArgs> {
        let cli = Cli::try_parse_from([&["x"], args].concat());
        cli.map(|cli| cli.otlp).ok()
    }

    #[test]
    fn endpoints_and_parts_are_checked() {
        let none = parse(&[]).unwrap();
        assert_eq!((none.otlp_endpoint, none.otlp_sample), (None, 1.0));
        let some = parse(&["--otlp-endpoint=http://[::1]:4317", "--otlp-sample=0.25"]).unwrap();
        assert_eq!(some.otlp_endpoint.as_deref(), Some("http://[::1]:4317"));
        assert_eq!(some.otlp_sample, 0.25);
        for bad in [
            "--otlp-endpoint=127.0.0.1:4317",
            "--otlp-endpoint=ftp://collector:4317",
            "--otlp-endpoint=https://collector",
            "--otlp-endpoint=http://collector",
            "--otlp-sample=1.5",
            "--otlp-sample=NaN",
        ] {
            assert_eq!(parse(&[bad]), None, "{bad}");
        }
        let endpoint = "--otlp-endpoint=https://collector:4317";
        assert_eq!(parse(&["--otlp-ca=ca.pem"]), None);
        assert_eq!(
            parse(&[endpoint, "--otlp-ca=ca.pem", "--otlp-cert=c.pem"]),
            None
        );
        let is_valid = |args: &[&str]| parse(args).unwrap().validate().is_ok();
        assert!(is_valid(&[]) && is_valid(&[endpoint, "--otlp-ca=ca.pem"]));
        assert!(is_valid(&["--otlp-endpoint=http://collector:4317"]));
        assert!(!is_valid(&[endpoint]));
        let files = parse(&[endpoint, "--otlp-ca=ca.pem"])
            .unwrap()
            .client_files();
        assert_eq!(files.unwrap().ca, PathBuf::from("ca.pem"));
    }
}
