// SPDX-License-Identifier: Apache-2.0

//! The agents' port: connections are accepted, shake hands, and speak HTTP/2, all within limits.

#![forbid(unsafe_code)]

mod acceptor;
mod budget;
mod connection;
mod connection_task;
mod gate;
mod hello;
mod http;
mod limits;
mod peer;
mod probation;
mod relief;
mod turns;
mod waiting_room;

pub use acceptor::Acceptor;
pub use connection::Connection;
pub use http::serve;
pub use limits::Limits;
pub use peer::{Admission, Peer};
