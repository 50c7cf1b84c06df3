// SPDX-License-Identifier: Apache-2.0

//! Flags of both programs.

/// Where spans are sent.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
#[command(next_help_heading = "Telemetry")]
pub struct OtlpArgs {
    /// Send a span for each step of a change, from the source to the kernel, to the OpenTelemetry collector at
    /// http://HOST:PORT (OTLP over gRPC, without TLS). Default: no spans.
    #[arg(long, env = "PORTOLAN_OTLP_ENDPOINT", value_name = "URL", value_parser = endpoint)]
    pub otlp_endpoint: Option<String>,

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

/// A value that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("expected {0}")]
struct Expected(&'static str);

fn endpoint(text: &str) -> Result<String, Expected> {
    let uri: Option<tonic::transport::Uri> = text.parse().ok();
    let is_good = uri.is_some_and(|uri| {
        uri.scheme_str() == Some("http") && uri.host().is_some() && uri.port().is_some()
    });
    is_good
        .then(|| text.to_owned())
        .ok_or(Expected("http://HOST:PORT"))
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
            "--otlp-endpoint=https://collector:4317",
            "--otlp-endpoint=http://collector",
            "--otlp-sample=1.5",
            "--otlp-sample=NaN",
        ] {
            assert_eq!(parse(&[bad]), None, "{bad}");
        }
    }
}
