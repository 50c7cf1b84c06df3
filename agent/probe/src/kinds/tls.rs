// SPDX-License-Identifier: Apache-2.0

//! A TLS handshake.

mod config;

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use portolan_health::Outcome;
use portolan_model::check::TlsProbe;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) use config::Configs;

use crate::fault::{Checked, Stop};
use crate::{Context, Target, socket};

const DAY: Duration = Duration::from_secs(86_400);

pub(crate) async fn run(probe: &TlsProbe, target: &Target, context: &Context) -> Checked<Outcome> {
    let stream = socket::connect(target, true).await?;
    handshake(stream, probe, None, target.address.ip(), context).await?;
    Ok(Outcome::pass())
}

/// Shakes hands, and checks how long the certificate remains valid. `host` is the server's name if the
/// probe has none, and the address if there is neither.
pub(crate) async fn handshake(
    stream: TcpStream,
    probe: &TlsProbe,
    host: Option<&str>,
    address: IpAddr,
    context: &Context,
) -> Checked<TlsStream<TcpStream>> {
    let config = context.tls().get(probe, context.files()).await?;
    let name = match probe.server_name.as_deref().or(host) {
        None => ServerName::from(address),
        Some(name) => {
            let bad = |_| Stop::ours(format_args!("server name {name:?} is malformed"));
            ServerName::try_from(name.to_owned()).map_err(bad)?
        }
    };
    let handshake = TlsConnector::from(config).connect(name, stream).await;
    let stream = handshake.map_err(|error| match error.get_ref() {
        Some(inner) => Stop::fails(format_args!("TLS: {inner}")),
        None => Stop::from(error),
    })?;
    if probe.minimum_days_valid > 0 {
        days_left(&stream, probe.minimum_days_valid)?;
    }
    Ok(stream)
}

fn days_left(stream: &TlsStream<TcpStream>, wanted: u32) -> Checked<()> {
    let chain = stream.get_ref().1.peer_certificates();
    let first = chain.and_then(|chain| chain.first());
    let certificate = first.ok_or_else(|| Stop::fails("the server has no certificate"))?;
    let facts = portolan_tls::read_certificate(certificate);
    let malformed = |error| Stop::fails(format_args!("the server's certificate: {error}"));
    let left = facts
        .map_err(malformed)?
        .expires
        .duration_since(SystemTime::now());
    let days = left.map_or(0, |left| left.as_secs() / DAY.as_secs());
    match days >= u64::from(wanted) {
        true => Ok(()),
        false => Err(Stop::fails(format_args!(
            "the certificate is valid for {days} more days, not {wanted}"
        ))),
    }
}
