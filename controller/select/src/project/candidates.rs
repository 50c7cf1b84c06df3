// SPDX-License-Identifier: Apache-2.0

//! The endpoints that a Service port may forward to, with their weights.

use std::net::SocketAddr;

use portolan_catalog::{Catalog, EndpointRef, Service, ServicePort};
use portolan_model::{Destination, Family};

use crate::rule::still_serving;

/// One endpoint, ready or not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) destination: Destination,
    pub(super) endpoint: EndpointRef<'a>,
}

impl Candidate<'_> {
    pub(super) fn address(&self) -> SocketAddr {
        self.destination.address
    }

    /// Returns `true` if it is usable when no endpoint is ready (KEP-1669).
    pub(super) fn still_serves(&self) -> bool {
        still_serving(&self.endpoint)
    }

    /// Returns `true` if it can be a destination.
    pub(super) fn is_usable(&self) -> bool {
        self.endpoint.is_usable()
    }
}

/// All endpoints of a Service port, sorted by address, each once.
#[derive(Debug)]
pub(super) struct Candidates<'a>(Vec<Candidate<'a>>);

impl<'a> Candidates<'a> {
    pub(super) fn of(catalog: &'a Catalog, service: &Service, port: &ServicePort) -> Self {
        let endpoints = catalog.endpoints(service, port).into_iter();
        let weights = catalog.weights(&service.key);
        let candidate = |(address, endpoint)| Candidate {
            destination: Destination {
                address,
                weight: weights.of(&endpoint),
            },
            endpoint,
        };
        Self(endpoints.map(candidate).collect())
    }

    /// Those of one family: all of IPv4 sort before all of IPv6.
    pub(super) fn of_family(&self, family: Family) -> &[Candidate<'a>] {
        let is_v4 = |c: &Candidate<'_>| c.address().is_ipv4();
        let (v4, v6) = self.0.split_at(self.0.partition_point(is_v4));
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }
}
