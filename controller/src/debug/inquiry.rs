// SPDX-License-Identifier: Apache-2.0

//! The query of `/debug/explain?address=IP:PORT&protocol=TCP&node=N`.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::{NodeKey, Protocol};
use portolan_select::Inquiry;

use super::failure::Failure;
use super::scoped::parameters;

/// Parses a query. The protocol is TCP by default.
pub(super) fn parse(cluster: &Arc<str>, query: &str) -> Result<Inquiry, Failure> {
    let (mut address, mut protocol, mut node) = (None, Protocol::Tcp, None);
    for (name, value) in parameters(query) {
        match &*name {
            "address" => address = Some(parse_address(&value)?),
            "protocol" => {
                let parsed = value.to_uppercase().parse::<Protocol>();
                protocol = parsed.map_err(|e| Failure::bad_request(format!("protocol: {e}")))?;
            }
            "node" => node = Some(value),
            other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
        }
    }
    let missing = |name: &str| Failure::bad_request(format!("{name}: missing"));
    Ok(Inquiry {
        node: NodeKey {
            cluster: Arc::clone(cluster),
            name: node.ok_or_else(|| missing("node"))?.into(),
        },
        has_agent: false,
        address: address.ok_or_else(|| missing("address"))?,
        protocol,
    })
}

fn parse_address(text: &str) -> Result<SocketAddr, Failure> {
    let wrong = |_| {
        let message = format!("address: {text:?} is not of the form 10.0.0.1:80 or [fd00::1]:80");
        Failure::bad_request(message)
    };
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<Inquiry, Failure> {
        parse(&"c".into(), query)
    }

    #[test]
    fn queries_are_parsed_and_bad_parameters_named() {
        let got = parsed("address=%5Bfd00::1%5D:53&protocol=udp&node=a").unwrap();
        assert_eq!(got.address, "[fd00::1]:53".parse().unwrap());
        assert_eq!((got.protocol, &*got.node.name), (Protocol::Udp, "a"));
        assert_eq!(&*got.node.cluster, "c");
        let got = parsed("address=10.0.0.1:80&node=a").unwrap();
        assert_eq!(got.protocol, Protocol::Tcp);
        for (query, field) in [
            ("", "node: "),
            ("node=a", "address: "),
            ("node=a&address=10.0.0.1", "address: "),
            ("node=a&address=10.0.0.1:80&protocol=icmp", "protocol: "),
            ("node=a&address=10.0.0.1:80&nod=b", "nod: "),
        ] {
            let error = parsed(query).unwrap_err().message;
            assert!(error.starts_with(field), "{query}: {error}");
        }
    }
}
