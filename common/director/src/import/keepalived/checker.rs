// SPDX-License-Identifier: Apache-2.0

//! Checkers: `HTTP_GET`, `TCP_CHECK`, `MISC_CHECK` and the others.

mod web;

use std::time::Duration;

use super::{Known, Statement};
use crate::document::{
    CheckDocument, DnsDocument, ExecDocument, FileDocument, IcmpDocument, Period, SourceDocument,
    TcpDocument, UdpDocument, WeightSource,
};
use crate::import::{Class, Draft, smtp_steps};

/// The timers that a service, a server and a checker may each set; the innermost counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Timers {
    interval: Option<Period>,
    timeout: Option<Period>,
    retry: Option<u32>,
    delay: Option<Period>,
}

impl Timers {
    /// Takes a statement that sets a timer; whether it is one.
    pub(super) fn setting(&mut self, draft: &mut Draft, statement: &Statement) -> bool {
        let period = statement.value().and_then(seconds);
        let is_right = match statement.name() {
            "delay_loop" => set(&mut self.interval, period),
            "connect_timeout" => set(&mut self.timeout, period),
            "delay_before_retry" => set(&mut self.delay, period),
            "retry" | "nb_get_retry" => set(&mut self.retry, statement.number()),
            "warmup" | "fast_recovery" | "regex_stack" | "tls_compliant" => {
                statement.note(draft, Class::Ignored, "");
                return true;
            }
            _ => return false,
        };
        if is_right {
            statement.note(draft, Class::Same, "");
        } else {
            statement.wrong(draft, "a number");
        }
        true
    }

    /// The timers of a check, with keepalived's defaults for its kind.
    fn put(&self, check: &mut CheckDocument, kind: &str) {
        let interval = self.interval.unwrap_or(Period::seconds(60));
        let retry = match kind {
            "DNS_CHECK" => 3,
            "MISC_CHECK" => 0,
            _ => 1,
        };
        let delay = match kind {
            "HTTP_GET" | "SSL_GET" => Period::seconds(3),
            "DNS_CHECK" => interval,
            _ => Period::seconds(1),
        };
        let timeout = match kind {
            // A program connects to nothing: its limit is its own, or else the interval.
            "MISC_CHECK" => interval,
            _ => self.timeout.unwrap_or(Period::seconds(5)),
        };
        check.interval = Some(interval);
        check.fast_interval = Some(self.delay.unwrap_or(delay));
        check.timeout = Some(timeout);
        check.fall = Some(self.retry.unwrap_or(retry).saturating_add(1));
        check.rise = Some(1);
    }
}

fn set<T>(target: &mut Option<T>, value: Option<T>) -> bool {
    let is_right = value.is_some();
    *target = value.or(target.take());
    is_right
}

/// Seconds, which may have a fraction.
fn seconds(text: &str) -> Option<Period> {
    let seconds: f64 = text.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok().map(Period::new)
}

/// The checks of a checker.
pub(super) fn checker(
    draft: &mut Draft,
    statement: &Statement,
    timers: &Timers,
    host: Option<&str>,
    known: &Known,
    director_name: &str,
) -> Vec<CheckDocument> {
    let mut timers = timers.clone();
    let mut check = CheckDocument::default();
    let mut own: Vec<&Statement> = Vec::new();
    for inner in &statement.block {
        // A host block has the settings of a connection, as the checker itself may.
        let settings = match inner.name() {
            "host" => &inner.block[..],
            _ => std::slice::from_ref(inner),
        };
        for setting in settings {
            if !timers.setting(draft, setting) && !connection(draft, setting, &mut check) {
                own.push(setting);
            }
        }
    }
    let kind = statement.name();
    timers.put(&mut check, kind);
    let checks = match kind {
        "HTTP_GET" | "SSL_GET" => web::checks(draft, &own, &check, kind == "SSL_GET", host),
        "BFD_CHECK" => {
            let message = "never: a file check can read what the BFD daemon writes";
            statement.note(draft, Class::LeftOut, message);
            return Vec::new();
        }
        _ => {
            let is_known = match kind {
                "TCP_CHECK" => {
                    check.tcp = Some(TcpDocument::default());
                    rest(draft, &own);
                    true
                }
                "PING_CHECK" => {
                    check.icmp = Some(IcmpDocument {});
                    rest(draft, &own);
                    true
                }
                "DNS_CHECK" => dns(draft, &own, &mut check),
                "UDP_CHECK" => udp(draft, &own, &mut check),
                "SMTP_CHECK" => smtp(draft, statement, &own, &mut check),
                "MISC_CHECK" => misc(draft, statement, &own, &mut check, director_name),
                "FILE_CHECK" => file(draft, statement, &own, &mut check, known),
                _ => false,
            };
            if !is_known {
                statement.note(draft, Class::Error, "unknown checker or missing settings");
                return Vec::new();
            }
            vec![check]
        }
    };
    statement.note(draft, Class::Same, "");
    checks
}

/// A setting of the connection; whether it is one.
fn connection(draft: &mut Draft, statement: &Statement, check: &mut CheckDocument) -> bool {
    let text = statement.value();
    let source = |check: &mut CheckDocument, change: &dyn Fn(&mut SourceDocument)| {
        change(check.source.get_or_insert_default());
    };
    let is_right = match statement.name() {
        "connect_ip" => set(&mut check.address, statement.number()),
        "connect_port" => set(&mut check.port, statement.number()),
        "bindto" => {
            let address = statement.number();
            source(check, &|source| source.address = address);
            address.is_some()
        }
        "bind_if" => {
            source(check, &|source| source.interface = text.map(str::to_owned));
            text.is_some()
        }
        "fwmark" => {
            let mark = statement.number().filter(|mark| *mark != 0);
            source(check, &|source| source.mark = mark);
            mark.is_some()
        }
        "log_all_failures" => {
            check.log_failures = true;
            true
        }
        "bind_port" => {
            statement.note(draft, Class::LeftOut, "the kernel chooses the source port");
            return true;
        }
        "alpha" => {
            statement.note(draft, Class::Nearest, "write alpha in the virtual server");
            return true;
        }
        _ => return false,
    };
    if is_right {
        statement.note(draft, Class::Same, "");
    } else {
        statement.wrong(draft, "a value of its kind");
    }
    true
}

/// Settings that no checker of the kind has.
fn rest(draft: &mut Draft, statements: &[&Statement]) {
    for statement in statements {
        statement.note(draft, Class::LeftOut, "no counterpart");
    }
}

fn dns(draft: &mut Draft, statements: &[&Statement], check: &mut CheckDocument) -> bool {
    let mut document = DnsDocument::default();
    for statement in statements {
        let value = statement.value().map(str::to_owned);
        match statement.name() {
            "type" => document.record_type = value,
            "name" => document.name = value,
            _ => {
                statement.note(draft, Class::LeftOut, "no counterpart");
                continue;
            }
        }
        statement.note(draft, Class::Same, "");
    }
    check.dns = Some(document);
    true
}

fn udp(draft: &mut Draft, statements: &[&Statement], check: &mut CheckDocument) -> bool {
    let mut document = UdpDocument::default();
    let without_spaces =
        |statement: &Statement| Some(statement.words[1..].join("").replace(' ', ""));
    for statement in statements {
        match statement.name() {
            "payload" => document.payload_hex = without_spaces(statement),
            "require_reply" => {
                document.require_reply = true;
                document.expect_hex = without_spaces(statement).filter(|hex| !hex.is_empty());
            }
            "min_reply_length" => document.min_length = statement.number(),
            "max_reply_length" => document.max_length = statement.number(),
            _ => {
                statement.note(draft, Class::LeftOut, "no counterpart");
                continue;
            }
        }
        statement.note(draft, Class::Same, "");
    }
    check.udp = Some(document);
    true
}

fn smtp(
    draft: &mut Draft,
    checker: &Statement,
    statements: &[&Statement],
    check: &mut CheckDocument,
) -> bool {
    let mut name = None;
    for statement in statements {
        if statement.name() == "helo_name" {
            name = statement.value();
            statement.note(draft, Class::Same, "");
        } else {
            statement.note(draft, Class::LeftOut, "no counterpart");
        }
    }
    if name.is_none() {
        checker.note(draft, Class::Nearest, "without helo_name: HELO localhost");
    }
    check.tcp = Some(TcpDocument {
        steps: smtp_steps(format!("HELO {}\r\n", name.unwrap_or("localhost"))),
    });
    true
}

fn misc(
    draft: &mut Draft,
    checker: &Statement,
    statements: &[&Statement],
    check: &mut CheckDocument,
    director_name: &str,
) -> bool {
    let mut document = ExecDocument::default();
    for statement in statements {
        match statement.name() {
            "misc_path" => {
                let Some(command) = command(statement) else {
                    let message = "a quote is not closed: expected a closing one";
                    statement.note(draft, Class::Error, message);
                    // In its place, so that nothing else is wrong.
                    document.command = vec![String::from("/")];
                    continue;
                };
                document.command = command;
            }
            "misc_timeout" => check.timeout = statement.value().and_then(seconds),
            "misc_dynamic" => document.weight_from = Some(WeightSource::ExitCode),
            "user" => {
                let user = statement.value().map(str::to_owned);
                let scripts = draft
                    .director(director_name)
                    .scripts
                    .get_or_insert_default();
                if scripts.user.is_some() && scripts.user != user {
                    statement.note(
                        draft,
                        Class::LeftOut,
                        "one user for all programs: the first",
                    );
                    continue;
                }
                scripts.user = user;
            }
            _ => {
                statement.note(draft, Class::LeftOut, "no counterpart");
                continue;
            }
        }
        statement.note(draft, Class::Same, "");
    }
    if document.command.is_empty() {
        checker.note(
            draft,
            Class::Error,
            "misc_path: missing: expected a program",
        );
    }
    check.exec = Some(document);
    true
}

/// The program and its arguments, of which a quoted text may hold all; nothing if a quote in it is not closed.
fn command(statement: &Statement) -> Option<Vec<String>> {
    match &statement.words[1..] {
        [only] => split(only),
        words => Some(words.to_vec()),
    }
}

/// The words of a command, where quotes group words as in a shell.
fn split(text: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, _) if c.is_whitespace() => words.extend(word.take()),
            _ => {
                // A backslash makes a character of a quote or a space. All others are for the program.
                let is_plain = |next: &char| next.is_whitespace() || matches!(next, '\'' | '"');
                let escaped = characters.next_if(|next| c == '\\' && is_plain(next));
                word.get_or_insert_default().push(escaped.unwrap_or(c));
            }
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

fn file(
    draft: &mut Draft,
    checker: &Statement,
    statements: &[&Statement],
    check: &mut CheckDocument,
    known: &Known,
) -> bool {
    let mut document = FileDocument::default();
    for statement in statements {
        match statement.name() {
            "track_file" => {
                let name = statement.value().unwrap_or_default();
                match known.files.get(name) {
                    Some(path) => document.path.clone_from(path),
                    None => {
                        statement.wrong(draft, "the name of a track_file block");
                        continue;
                    }
                }
            }
            "weight" => {
                document.weight = statement.number();
                if statement.words.iter().any(|word| word == "reverse") {
                    document.weight = document.weight.map(i32::saturating_neg);
                }
            }
            "dynamic" => {
                document.weight.get_or_insert(1);
            }
            _ => {
                statement.note(draft, Class::LeftOut, "no counterpart");
                continue;
            }
        }
        statement.note(draft, Class::Same, "");
    }
    if document.path.is_empty() {
        checker.note(
            draft,
            Class::Error,
            "track_file: missing: expected a known one",
        );
        document.path = String::from("/");
    }
    check.file = Some(document);
    true
}
