// SPDX-License-Identifier: Apache-2.0

//! Dumps of links and addresses. One during which the kernel's state changed may lack some, and is read again.

use futures_util::{Stream, StreamExt as _};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use portolan_netlink::SocketError;
use rtnetlink::Handle;
use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use tokio::task::JoinHandle;

use crate::DataplaneError;

/// Dumps before an error.
const ATTEMPTS: usize = 5;

type Message = NetlinkMessage<RouteNetlinkMessage>;

/// Makes a connection for dumps and changes. Must be called within a tokio runtime.
pub(super) fn connect() -> std::io::Result<(Handle, JoinHandle<()>)> {
    let (mut connection, handle, _) = rtnetlink::new_connection()?;
    // The message at the end of a dump may be the one that tells of a change. `execute()` of rtnetlink's own dumps
    // takes it for an error.
    connection.set_forward_done(true);
    Ok((handle, tokio::spawn(connection)))
}

/// Reads all links.
pub(super) async fn links(handle: &Handle) -> Result<Vec<LinkMessage>, DataplaneError> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    let read = |message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    };
    consistent(|| dump(handle, &request), read).await
}

/// Reads the addresses of all links.
pub(super) async fn addresses(handle: &Handle) -> Result<Vec<AddressMessage>, DataplaneError> {
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let read = |message| match message {
        RouteNetlinkMessage::NewAddress(address) => Some(address),
        _ => None,
    };
    consistent(|| dump(handle, &request), read).await
}

fn dump(
    handle: &Handle,
    request: &RouteNetlinkMessage,
) -> Result<impl Stream<Item = Message> + use<>, rtnetlink::Error> {
    let mut message = Message::from(request.clone());
    message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    handle.clone().request(message)
}

/// Dumps until nothing has changed meanwhile.
async fn consistent<T, S: Stream<Item = Message> + Unpin>(
    dump: impl Fn() -> Result<S, rtnetlink::Error>,
    read: impl Fn(RouteNetlinkMessage) -> Option<T>,
) -> Result<Vec<T>, DataplaneError> {
    for _ in 0..ATTEMPTS {
        if let Some(all) = collect(dump()?, &read).await? {
            return Ok(all);
        }
    }
    Err(DataplaneError::RouteSocket(SocketError::Interrupted))
}

/// Collects the objects of one dump; `None` if the kernel says that some may be missing.
async fn collect<T>(
    mut messages: impl Stream<Item = Message> + Unpin,
    read: impl Fn(RouteNetlinkMessage) -> Option<T>,
) -> Result<Option<Vec<T>>, rtnetlink::Error> {
    let (mut all, mut is_interrupted) = (Vec::new(), false);
    while let Some(message) = messages.next().await {
        is_interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
        match message.payload {
            NetlinkPayload::InnerMessage(message) => all.extend(read(message)),
            NetlinkPayload::Done(ref done) if done.code == 0 => {
                return Ok((!is_interrupted).then_some(all));
            }
            NetlinkPayload::Error(error) => return Err(rtnetlink::Error::NetlinkError(error)),
            _ => return Err(rtnetlink::Error::UnexpectedMessage(message)),
        }
    }
    // The connection has ended in the middle.
    Err(rtnetlink::Error::RequestFailed)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use futures_util::stream;
    use rtnetlink::packet_core::{DoneMessage, ErrorMessage, NetlinkHeader};

    use super::*;

    /// A message of a dump, with or without the flag of a change.
    fn message(payload: NetlinkPayload<RouteNetlinkMessage>, is_interrupted: bool) -> Message {
        let mut header = NetlinkHeader::default();
        header.flags = if is_interrupted { NLM_F_DUMP_INTR } else { 0 };
        Message::new(header, payload)
    }

    fn link(index: u32, is_interrupted: bool) -> Message {
        let mut link = LinkMessage::default();
        link.header.index = index;
        let link = RouteNetlinkMessage::NewLink(link);
        message(NetlinkPayload::InnerMessage(link), is_interrupted)
    }

    fn done(is_interrupted: bool) -> Message {
        message(NetlinkPayload::Done(DoneMessage::default()), is_interrupted)
    }

    /// The indices of the links that are read by these dumps, and how many dumps are left.
    async fn read(dumps: Vec<Vec<Message>>) -> (Result<Vec<u32>, DataplaneError>, usize) {
        let dumps = RefCell::new(VecDeque::from(dumps));
        let next = || Ok(stream::iter(dumps.borrow_mut().pop_front().unwrap()));
        let index = |message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link.header.index),
            _ => None,
        };
        let found = consistent(next, index).await;
        (found, dumps.borrow().len())
    }

    #[tokio::test]
    async fn an_interrupted_dump_is_repeated() {
        let whole = || vec![link(1, false), link(2, false), done(false)];
        for interrupted in [
            vec![link(1, false), done(true)],
            vec![link(1, false), link(3, true), done(false)],
        ] {
            let (found, left) = read(vec![interrupted, whole(), whole()]).await;
            assert_eq!((found.unwrap(), left), (vec![1, 2], 1));
        }
        let always = vec![vec![link(1, true), done(false)]; ATTEMPTS + 1];
        let (found, left) = read(always).await;
        let error = found.unwrap_err();
        assert!(
            matches!(error, DataplaneError::RouteSocket(SocketError::Interrupted)),
            "{error}"
        );
        assert_eq!(left, 1);
    }

    #[tokio::test]
    async fn a_dump_without_an_end_or_with_an_error_is_an_error() {
        let mut failed = DoneMessage::default();
        failed.code = -12;
        for last in [
            None,
            Some(NetlinkPayload::Done(failed)),
            Some(NetlinkPayload::Error(ErrorMessage::default())),
            Some(NetlinkPayload::Overrun(Vec::new())),
        ] {
            let last = last.map(|payload| message(payload, false));
            let (found, _) = read(vec![[link(1, false)].into_iter().chain(last).collect()]).await;
            found.unwrap_err();
        }
    }
}
