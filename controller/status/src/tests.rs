// SPDX-License-Identifier: Apache-2.0

//! Rules for all pages: no text of an object becomes markup, nothing is inline, and colours can be read.

mod contrast;

use std::time::Duration;

use super::*;

/// Text that a hostile tenant may put into a name, an annotation or a message.
const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>&amp;";

fn frame(t: &str) -> Frame {
    Frame {
        version: t.to_owned(),
        cluster: Some(t.to_owned()),
        unready: vec![t.to_owned()],
        digest: 0xab,
    }
}

fn node_row(t: &str) -> NodeRow {
    NodeRow {
        cluster: t.to_owned(),
        node: t.to_owned(),
        version: t.to_owned(),
        peer: t.to_owned(),
        held: Some((1, 2)),
        ..NodeRow::default()
    }
}

fn cluster_row(t: &str) -> ClusterRow {
    ClusterRow {
        name: t.to_owned(),
        ..ClusterRow::default()
    }
}

fn problem_row(t: &str) -> ProblemRow {
    ProblemRow {
        object: t.to_owned(),
        field: t.to_owned(),
        message: t.to_owned(),
        since: Some(Duration::from_secs(5)),
    }
}

fn overview(t: &str) -> Overview {
    Overview {
        clusters: vec![cluster_row(t)],
        shares: Shares {
            connected: 3,
            newest: 2,
            ..Shares::default()
        },
        changes: vec![Change {
            cluster: t.to_owned(),
            ..Change::default()
        }],
        problems: vec![problem_row(t)],
        problems_total: 7,
        held: vec![HeldDeletions {
            cluster: t.to_owned(),
            kind: t.to_owned(),
            ..HeldDeletions::default()
        }],
    }
}

fn service(t: &str) -> ServiceDetails {
    let frontend = Frontend {
        kind: t.to_owned(),
        address: t.to_owned(),
        question: t.to_owned(),
        protocol: t.to_owned(),
        sources: t.to_owned(),
        on_node: Some(1),
        ..Frontend::default()
    };
    let destination = Destination {
        address: t.to_owned(),
        weight: 1,
        zones: t.to_owned(),
    };
    let port = Port {
        name: t.to_owned(),
        notes: vec![t.to_owned()],
        frontends: vec![frontend],
        destinations: vec![destination],
        destinations_total: 2,
    };
    ServiceDetails {
        cluster: t.to_owned(),
        namespace: t.to_owned(),
        name: t.to_owned(),
        node: t.to_owned(),
        ports: vec![port],
    }
}

fn services(t: &str) -> Services {
    let row = ServiceRow {
        namespace: t.to_owned(),
        name: t.to_owned(),
        ports: vec![t.to_owned()],
        frontends: vec![t.to_owned()],
        frontends_total: 2,
        policy: t.to_owned(),
        hints: t.to_owned(),
        affinity: t.to_owned(),
        scheduler: t.to_owned(),
        destinations: 1,
    };
    Services {
        list: Listed::new(query(t), 300, vec![row; 300].into_iter()),
    }
}

fn ask(t: &str, answer: Result<Answer, String>) -> Ask {
    Ask {
        asked: Asked {
            cluster: t.to_owned(),
            address: t.to_owned(),
            protocol: t.to_owned(),
            node: t.to_owned(),
        },
        answer: Some(answer),
    }
}

fn answer(t: &str) -> Answer {
    let endpoint = Endpoint {
        used: true,
        address: t.to_owned(),
        weight: 1,
        node: t.to_owned(),
        zone: t.to_owned(),
        reason: t.to_owned(),
    };
    Answer {
        record: t.to_owned(),
        kind: t.to_owned(),
        policy: t.to_owned(),
        zone: t.to_owned(),
        endpoints: vec![endpoint],
        notes: vec![t.to_owned()],
    }
}

fn node(t: &str) -> NodeDetails {
    let fault = RecordFault {
        record: t.to_owned(),
        message: t.to_owned(),
    };
    NodeDetails {
        row: node_row(t),
        refused: vec![fault.clone()],
        errors: vec![fault],
        changed: Some(vec![t.to_owned()]),
    }
}

fn query(t: &str) -> ListQuery {
    ListQuery {
        cluster: t.to_owned(),
        filter: t.to_owned(),
        sort: t.to_owned(),
        state: t.to_owned(),
        descending: true,
        page: 2,
    }
}

/// Every page, of view models whose texts are all the same.
fn pages(t: &str) -> Vec<(&'static str, String)> {
    let frame = frame(t);
    let list = ListQuery::default();
    let pages = [
        ("overview", overview(t).page(&frame)),
        (
            "clusters",
            Clusters {
                rows: vec![cluster_row(t)],
            }
            .page(&frame),
        ),
        (
            "nodes",
            select_nodes(vec![node_row(t); 300], list.clone()).page(&frame),
        ),
        ("node", node(t).page(&frame)),
        ("services", services(t).page(&frame)),
        ("service", service(t).page(&frame)),
        (
            "problems",
            select_problems(vec![problem_row(t); 300], list).page(&frame),
        ),
        ("ask", ask(t, Ok(answer(t))).page(&frame)),
        ("ask failed", ask(t, Err(t.to_owned())).page(&frame)),
        ("error", error(&frame, Tab::Nodes, t)),
    ];
    let pages = pages.map(|(name, page)| (name, page.into_string()));
    let mut all = Vec::from(pages);
    all.push(("hint", hint(t)));
    all
}

/// The tags of a page, without the values of attributes.
fn tags(page: &str) -> Vec<String> {
    let (mut tags, mut tag, mut is_quoted) = (Vec::new(), None::<String>, false);
    for c in page.chars() {
        match (&mut tag, c) {
            (None, '<') => tag = Some(String::new()),
            (None, _) => {}
            (Some(_), '"') => is_quoted = !is_quoted,
            (Some(_), '>') if !is_quoted => tags.extend(tag.take()),
            (Some(text), c) if !is_quoted => text.push(c),
            (Some(_), _) => {}
        }
    }
    tags
}

#[test]
fn no_text_of_an_object_becomes_markup() {
    for ((name, page), (_, harmless)) in pages(HOSTILE).into_iter().zip(pages("harmless")) {
        assert_eq!(tags(&page), tags(&harmless), "{name}");
        let escaped = "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;";
        assert!(page.contains(escaped), "{name}: {page}");
    }
    let broken = tags("<p class=\"a\"><b>x</b><script>y</script>");
    assert_eq!(broken, ["p class=", "b", "/b", "script", "/script"]);
}

#[test]
fn nothing_is_inline_and_everything_is_of_this_server() {
    for (name, page) in pages(HOSTILE) {
        for inline in [
            " style=",
            "<style",
            "javascript:",
            " onclick",
            " onload",
            "http-equiv=\"set",
        ] {
            assert!(!page.contains(inline), "{name}: {inline}");
        }
        let sources = page.split("src=\"").skip(1);
        let links = page.split("href=\"").skip(1);
        let targets = sources.chain(links).chain(page.split("action=\"").skip(1));
        for target in targets.map(|rest| rest.split('"').next().unwrap()) {
            assert!(
                target.starts_with("/status/") || target == "#main",
                "{name}: {target}"
            );
            assert!(
                !target.contains("<") && !target.contains('\''),
                "{name}: {target}"
            );
        }
    }
}

#[test]
fn pages_have_the_digest_that_a_browser_compares_with_the_newest_one() {
    for (name, page) in pages(HOSTILE) {
        let digests = page.matches(" data-digest=\"00000000000000ab\"").count();
        let expected = usize::from(name != "hint");
        assert_eq!(digests, expected, "{name}");
    }
    // The script compares it with the first one that it is told.
    let script = asset("live.js").unwrap().text;
    assert!(script.contains("event.data !== content().dataset.digest"));
}

#[test]
fn a_page_of_an_error_replaces_the_one_in_the_browser() {
    let script = asset("live.js").unwrap().text;
    assert!(!script.contains("answer.ok"));
    let page = error(&Frame::default(), Tab::Services, "gone").into_string();
    assert!(page.contains("id=\"main\""), "{page}");
}

#[test]
fn tables_and_fields_have_names_for_screen_readers() {
    for (name, page) in pages(HOSTILE) {
        assert!(
            page.starts_with("<!DOCTYPE html><html lang=\"en\">"),
            "{name}"
        );
        assert_eq!(page.matches("<h1>").count(), 1, "{name}");
        let regions = page.matches("<div class=\"scroll\"").count();
        assert_eq!(page.matches("<table>").count(), regions, "{name}");
        for region in page.split("<div class=\"scroll\"").skip(1) {
            assert!(
                region.starts_with(" role=\"region\" aria-label=\""),
                "{name}"
            );
        }
        // Every field is within a label, or hidden.
        for before in page.split("<input").collect::<Vec<_>>().windows(2) {
            let is_hidden = before[1].starts_with(" type=\"hidden\"");
            let open = before[0].rfind("<label>").unwrap_or(0);
            let closed = before[0].rfind("</label>").unwrap_or(0);
            assert!(is_hidden || open > closed, "{name}: {}", before[1]);
        }
    }
}

#[test]
fn files_that_pages_name_are_in_the_program() {
    for (name, page) in pages(HOSTILE) {
        let files = page.split("/status/").skip(1);
        let files = files.filter_map(|rest| rest.split(['"', '?', '&']).next());
        for file in files.filter(|file| file.contains('.')) {
            assert!(asset(file).is_some(), "{name}: {file}");
        }
    }
    for file in ["style.css", "live.js", "icon.svg"] {
        assert!(asset(file).is_some(), "{file}");
    }
    assert_eq!(asset("../Cargo.toml"), None);
}

#[test]
fn the_hint_names_nothing_but_its_reason() {
    let page = hint("the reason");
    assert!(
        page.contains("the reason") && page.contains("port-forward"),
        "{page}"
    );
    assert!(!page.contains("/status/nodes"), "{page}");
}

#[test]
fn nodes_are_filtered_sorted_and_counted() {
    let row = |name: &str, connected: bool, lag: u64, errors: u32| NodeRow {
        node: name.to_owned(),
        connected,
        lag,
        errors,
        behind: (lag > 0).then_some(Duration::from_secs(lag)),
        ..NodeRow::default()
    };
    let all = || {
        vec![
            row("b", true, 3, 0),
            row("a", true, 0, 2),
            row("c", false, 9, 0),
            row("d", true, 3, 0),
        ]
    };
    let shown = |query: &str| {
        let query = ListQuery::parse(query, &Nodes::COLUMNS, &State::NAMES).unwrap();
        let nodes = select_nodes(all(), query);
        assert_eq!(nodes.list.total, 4);
        let names = nodes.list.rows.into_iter().map(|row| row.node);
        names.collect::<Vec<_>>().join(" ")
    };
    for (query, expected) in [
        ("", "a b c d"),
        ("sort=node&order=descending", "d c b a"),
        ("sort=lag", "a b d c"),
        ("sort=lag&order=descending", "c b d a"),
        ("state=behind", "b d"),
        ("state=disconnected", "c"),
        ("state=errors", "a"),
        ("state=held", ""),
        ("q=D", "d"),
        ("cluster=other", ""),
    ] {
        assert_eq!(shown(query), expected, "{query}");
    }
}

#[test]
fn a_problem_is_split_into_object_field_and_message() {
    for (text, expected) in [
        (
            "Service a/b: spec.ports: 3 times: x",
            ("Service a/b", "spec.ports", "3 times: x"),
        ),
        (
            "Service a/b: is unreadable: x",
            ("Service a/b", "", "is unreadable: x"),
        ),
        (
            "f.yaml:3:1: spec: expected a map",
            ("f.yaml:3:1", "spec", "expected a map"),
        ),
        ("odd", ("", "", "odd")),
    ] {
        assert_eq!(split_problem(text), expected);
    }
    let rows = vec![
        problem_row(HOSTILE),
        ProblemRow {
            object: "Node n".to_owned(),
            ..ProblemRow::default()
        },
    ];
    let query = ListQuery {
        filter: "node".to_owned(),
        ..ListQuery::default()
    };
    let found = select_problems(rows, query).list;
    assert_eq!(
        (found.total, found.matching, &*found.rows[0].object),
        (2, 1, "Node n")
    );
}
