// SPDX-License-Identifier: Apache-2.0

//! `HTTP_GET` and `SSL_GET`: one check for each `url` block.

use crate::convert::name_of;
use crate::document::{CheckDocument, HttpDocument, HttpVersionName, StatusDocument, TlsDocument};
use crate::import::keepalived::Statement;
use crate::import::{Class, Draft};

/// Settings that all URLs of a checker share.
struct Shared {
    version: HttpVersionName,
    host: Option<String>,
    uses_sni: bool,
    sni_name: Option<String>,
    tls: bool,
}

pub(super) fn checks(
    draft: &mut Draft,
    statements: &[&Statement],
    common: &CheckDocument,
    tls: bool,
    host: Option<&str>,
) -> Vec<CheckDocument> {
    let mut shared = Shared {
        version: HttpVersionName::Http10,
        host: host.map(str::to_owned),
        uses_sni: false,
        sni_name: None,
        tls,
    };
    for statement in statements
        .iter()
        .filter(|statement| statement.name() != "url")
    {
        setting(draft, statement, &mut shared);
    }
    let with = |http: HttpDocument| CheckDocument {
        http: Some(http),
        ..common.clone()
    };
    let urls: Vec<&&Statement> = statements
        .iter()
        .filter(|inner| inner.name() == "url")
        .collect();
    if urls.is_empty() {
        return vec![with(document(&shared))];
    }
    urls.into_iter()
        .map(|statement| with(url(draft, statement, &shared)))
        .collect()
}

fn setting(draft: &mut Draft, statement: &Statement, shared: &mut Shared) {
    let value = statement.value().map(str::to_owned);
    match statement.name() {
        "http_protocol" => {
            shared.version = match value
                .as_deref()
                .map(|text| text.trim_end_matches(['c', 'C', 'k', 'K']))
            {
                Some("1.0") => HttpVersionName::Http10,
                Some("1.1") => HttpVersionName::Http11,
                _ => return statement.wrong(draft, "1.0 or 1.1"),
            };
        }
        "virtualhost" => shared.host = value,
        "enable_sni" => shared.uses_sni = true,
        "sni_name" => {
            shared.uses_sni = true;
            shared.sni_name = value;
        }
        _ => return statement.note(draft, Class::LeftOut, "no counterpart"),
    }
    statement.note(draft, Class::Same, "");
}

fn document(shared: &Shared) -> HttpDocument {
    let name_of_host = || {
        let host = shared.host.as_deref()?;
        Some(name_of(host).unwrap_or(host).to_owned())
    };
    let name = shared.sni_name.clone().or_else(name_of_host);
    HttpDocument {
        version: Some(shared.version),
        host: shared.host.clone(),
        tls: shared.tls.then(|| TlsDocument {
            server_name: name.filter(|_| shared.uses_sni),
            ..TlsDocument::default()
        }),
        ..HttpDocument::default()
    }
}

fn url(draft: &mut Draft, url: &Statement, shared: &Shared) -> HttpDocument {
    let mut http = document(shared);
    let mut options = String::new();
    let mut regex = None;
    let mut not_regex = None;
    for statement in &url.block {
        let value = statement.value().map(str::to_owned);
        let class = match statement.name() {
            "path" => {
                http.path = value;
                Class::Same
            }
            "virtualhost" => {
                http.host = value;
                Class::Same
            }
            "status_code" => {
                http.statuses = statuses(statement);
                if http.statuses.is_none() {
                    statement.wrong(draft, "status codes and ranges such as 200-299");
                    continue;
                }
                Class::Same
            }
            "digest" => {
                http.body_md5 = value;
                Class::Nearest
            }
            "regex" => {
                regex = value;
                Class::Nearest
            }
            "regex_no_match" => {
                not_regex = value;
                Class::Nearest
            }
            "regex_options" => {
                options = statement.words[1..]
                    .iter()
                    .filter_map(|word| flag(word))
                    .collect();
                Class::Nearest
            }
            "regex_stack" => Class::Ignored,
            _ => Class::LeftOut,
        };
        let message = match (class, statement.name()) {
            (Class::LeftOut, _) => "no counterpart",
            (Class::Nearest, "digest") => "bodyMd5",
            (Class::Nearest, _) => "bodyRegex, without look-around and back-references",
            _ => "",
        };
        statement.note(draft, class, message);
    }
    let flagged = |pattern: String| match options.as_str() {
        "" => pattern,
        options => format!("(?{options}){pattern}"),
    };
    http.body_regex = regex.map(flagged);
    http.body_not_regex = not_regex.map(flagged);
    http
}

/// The inline flag of a regular expression.
fn flag(option: &str) -> Option<char> {
    match option {
        "caseless" => Some('i'),
        "multiline" => Some('m'),
        "dotall" => Some('s'),
        "ungreedy" => Some('U'),
        "extended" => Some('x'),
        _ => None,
    }
}

fn statuses(statement: &Statement) -> Option<Vec<StatusDocument>> {
    let status = |word: &String| match word.split_once('-') {
        None => word.parse().ok().map(StatusDocument::Code),
        Some((first, last)) => {
            first.parse::<u16>().ok()?;
            last.parse::<u16>().ok()?;
            Some(StatusDocument::Range(word.clone()))
        }
    };
    let statuses: Option<Vec<_>> = statement.words[1..].iter().map(status).collect();
    statuses.filter(|statuses| !statuses.is_empty())
}
