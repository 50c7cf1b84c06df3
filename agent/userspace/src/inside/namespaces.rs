// SPDX-License-Identifier: Apache-2.0

//! The namespaces of a command: user, network and mounts, all of its own.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use rtnetlink::packet_route::route::{RouteScope, RouteType};
use rtnetlink::{Handle, LinkUnspec, RouteMessageBuilder};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

/// The loopback device's number in any network namespace.
const LOOPBACK: u32 = 1;

/// The table of routes to the machine itself.
const LOCAL_TABLE: u32 = 255;

/// Error of entering namespaces.
#[derive(Debug, thiserror::Error)]
pub(super) enum NamespaceError {
    #[error(
        "this kernel gives no user namespace to this user ({0}): see user.max_user_namespaces, and on Ubuntu \
         kernel.apparmor_restrict_unprivileged_userns; or use --userspace-listen loopback"
    )]
    Refused(io::Error),
    #[error("{0}: {1}")]
    File(&'static str, io::Error),
    #[error("/etc/resolv.conf cannot be replaced for the command: {0}")]
    Names(io::Error),
}

/// Moves this process, which must have one thread, into namespaces of its own, in which it has all rights. User and
/// group stay the same for the command, which has no rights beyond those of the user.
pub(super) fn enter(resolv_conf: &Path) -> Result<(), NamespaceError> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    #[expect(deprecated, reason = "unsafe with FILES alone, which is not asked for")]
    rustix::thread::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET | UnshareFlags::NEWNS)
        .map_err(|error| NamespaceError::Refused(error.into()))?;
    let map = |file: &'static str, text: String| {
        fs::write(file, text).map_err(|error| NamespaceError::File(file, error))
    };
    // A group is mapped without a right only if it cannot be left.
    map("/proc/self/setgroups", "deny".to_owned())?;
    map("/proc/self/uid_map", format!("{user} {user} 1"))?;
    map("/proc/self/gid_map", format!("{group} {group} 1"))?;
    let names = |error: rustix::io::Errno| NamespaceError::Names(error.into());
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(names)?;
    mount_bind(resolv_conf, "/etc/resolv.conf").map_err(names)
}

/// Brings the loopback device up.
pub(super) async fn bring_up(handle: &Handle) -> Result<(), rtnetlink::Error> {
    let up = LinkUnspec::new_with_index(LOOPBACK).up().build();
    handle.link().set(up).execute().await
}

/// Routes an address to the namespace itself.
pub(super) async fn route(handle: &Handle, address: IpAddr) -> Result<(), rtnetlink::Error> {
    match address {
        IpAddr::V4(address) => handle.route().add(to_v4(address)).replace().execute().await,
        IpAddr::V6(address) => handle.route().add(to_v6(address)).replace().execute().await,
    }
}

/// Deletes such a route.
pub(super) async fn unroute(handle: &Handle, address: IpAddr) -> Result<(), rtnetlink::Error> {
    match address {
        IpAddr::V4(address) => handle.route().del(to_v4(address)).execute().await,
        IpAddr::V6(address) => handle.route().del(to_v6(address)).execute().await,
    }
}

fn to_v4(address: Ipv4Addr) -> rtnetlink::packet_route::route::RouteMessage {
    RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(address, 32)
        .output_interface(LOOPBACK)
        .table_id(LOCAL_TABLE)
        .scope(RouteScope::Host)
        .kind(RouteType::Local)
        .build()
}

fn to_v6(address: Ipv6Addr) -> rtnetlink::packet_route::route::RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(address, 128)
        .output_interface(LOOPBACK)
        .table_id(LOCAL_TABLE)
        .kind(RouteType::Local)
        .build()
}
