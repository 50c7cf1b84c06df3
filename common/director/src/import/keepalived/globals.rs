// SPDX-License-Identifier: Apache-2.0

//! `global_defs` and files that are watched.

use super::{Known, Statement};
use crate::document::{Period, SyncDocument, TimeoutsDocument};
use crate::import::{Class, Draft};

pub(super) fn track_file(statement: &Statement, known: &mut Known) {
    let path = statement.block.iter().find(|inner| inner.name() == "file");
    if let (Some(name), Some(path)) = (statement.value(), path.and_then(Statement::value)) {
        known.files.insert(name.to_owned(), path.to_owned());
    }
}

pub(super) fn read(draft: &mut Draft, globals: &Statement, name: &str) {
    for statement in &globals.block {
        match statement.name() {
            "lvs_sync_daemon" => sync_daemon(draft, statement, name),
            "lvs_timeouts" => timeouts(draft, statement, name),
            "script_user" => {
                let user = statement.value().map(str::to_owned);
                draft.director(name).scripts.get_or_insert_default().user = user;
                statement.note(draft, Class::Same, "");
            }
            "router_id" => statement.note(draft, Class::Ignored, ""),
            "notification_email"
            | "notification_email_from"
            | "smtp_server"
            | "smtp_alert"
            | "smtp_connect_timeout"
            | "smtp_alert_checker"
            | "email_faults" => {
                statement.note(draft, Class::LeftOut, "no mail: use metrics and hooks");
            }
            "lvs_notify_fifo" | "lvs_notify_fifo_script" => {
                statement.note(draft, Class::LeftOut, "later: use hooks");
            }
            "lvs_flush" | "lvs_flush_on_stop" | "lvs_flush_onstop" => {
                statement.note(draft, Class::LeftOut, "never: the kernel stays as it is");
            }
            name if name.starts_with("nftables_ipvs") => {
                statement.note(
                    draft,
                    Class::LeftOut,
                    "never: the field ports has rules of ours",
                );
            }
            name if name.starts_with("vrrp_") => {
                statement.note(draft, Class::LeftOut, "stays with keepalived");
            }
            _ => statement.note(draft, Class::LeftOut, "no counterpart"),
        }
    }
}

/// `lvs_sync_daemon IF [INST] [id N] [maxlen N] [port N] [ttl N] [group A]`.
fn sync_daemon(draft: &mut Draft, statement: &Statement, name: &str) {
    let mut sync = SyncDocument {
        interface: statement.value().unwrap_or_default().to_owned(),
        ..SyncDocument::default()
    };
    let mut words = statement.words.iter().skip(2).peekable();
    let known = |word: &str| matches!(word, "id" | "maxlen" | "port" | "ttl" | "group");
    let mut is_right = true;
    if words.next_if(|word| !known(word.as_str())).is_some() {
        let message = "the instance is left out: both daemons run on each director";
        statement.note(draft, Class::Nearest, message);
    }
    while let Some(word) = words.next() {
        let value = words.next().map_or("", String::as_str);
        is_right &= match word.as_str() {
            "id" => value.parse().map(|id| sync.id = id).is_ok(),
            "maxlen" => value
                .parse()
                .map(|length| sync.max_length = Some(length))
                .is_ok(),
            "port" => value.parse().map(|port| sync.port = Some(port)).is_ok(),
            "ttl" => value.parse().map(|ttl| sync.ttl = Some(ttl)).is_ok(),
            "group" => value.parse().map(|group| sync.group = Some(group)).is_ok(),
            _ => false,
        };
    }
    if is_right && !sync.interface.is_empty() {
        statement.note(draft, Class::Same, "");
        draft.director(name).sync = Some(sync);
    } else {
        statement.wrong(
            draft,
            "an interface, then id, maxlen, port, ttl and group with values",
        );
    }
}

/// `lvs_timeouts [tcp N] [tcpfin N] [udp N]`, in seconds.
fn timeouts(draft: &mut Draft, statement: &Statement, name: &str) {
    let mut timeouts = TimeoutsDocument::default();
    for pair in statement.words[1..].chunks(2) {
        let value = pair
            .get(1)
            .and_then(|text| text.parse().ok())
            .map(Period::seconds);
        let target = match pair[0].as_str() {
            "tcp" => &mut timeouts.tcp,
            "tcpfin" => &mut timeouts.tcp_fin,
            "udp" => &mut timeouts.udp,
            _ => {
                statement.wrong(draft, "tcp, tcpfin and udp with seconds");
                return;
            }
        };
        *target = value;
        if value.is_none() {
            statement.wrong(draft, "tcp, tcpfin and udp with seconds");
            return;
        }
    }
    statement.note(draft, Class::Same, "");
    draft.director(name).timeouts = Some(timeouts);
}
