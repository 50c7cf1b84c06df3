// SPDX-License-Identifier: Apache-2.0

//! One datagram.

use std::time::Duration;

use portolan_health::Outcome;
use portolan_model::check::UdpProbe;
use tokio::time::timeout;

use crate::fault::{Checked, Stop};
use crate::{Target, socket};

/// The largest datagram.
const MAX: usize = 65_535;

pub(crate) async fn run(probe: &UdpProbe, target: &Target, limit: Duration) -> Checked<Outcome> {
    let socket = socket::datagrams(target)?;
    let exchange = async {
        // The first datagram: no router can have refused one yet.
        let sent = socket.send(&probe.payload).await;
        sent.map_err(Stop::of_call)?;
        let mut reply = vec![0; MAX];
        let length = socket.recv(&mut reply).await?;
        reply.truncate(length);
        Ok::<_, Stop>(reply)
    };
    match timeout(limit, exchange).await {
        Ok(reply) => judge(probe, &reply?).map(|()| Outcome::pass()),
        Err(_) if probe.require_reply => {
            Err(Stop::fails(format_args!("no reply within {limit:?}")))
        }
        Err(_) => Ok(Outcome::pass()),
    }
}

fn judge(probe: &UdpProbe, reply: &[u8]) -> Checked<()> {
    let allowed = usize::from(probe.min_length)..=usize::from(probe.max_length);
    if !allowed.contains(&reply.len()) {
        let (length, low, high) = (reply.len(), probe.min_length, probe.max_length);
        return Err(Stop::fails(format_args!(
            "a reply of {length} bytes, not {low} to {high}"
        )));
    }
    let mut halves = reply.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let fits = |expected: &Option<u8>| {
        let half = halves.next();
        half.is_some_and(|half| expected.is_none_or(|expected| expected == half))
    };
    match probe.expect.iter().all(fits) {
        true => Ok(()),
        false => Err(Stop::fails("a reply that begins with other bytes")),
    }
}
