// SPDX-License-Identifier: Apache-2.0

use portolan_terminal::Flow;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::super::{Backend, Balancer, Overview, Rates, Usage, VirtualServer};
use super::render::draw;
use super::*;

fn usage(active: u64, rate: f64) -> Option<Usage> {
    let rates = Rates {
        connections: rate,
        ..Rates::default()
    };
    Some(Usage {
        active,
        inactive: 0,
        rates: Some(rates),
    })
}

/// A load balancer with one virtual server; `up` of 2 backends are up.
fn balancer(name: &str, last: u8, up: usize, quorum: bool, usage: Option<Usage>) -> Balancer {
    let backend = |number: usize| Backend {
        address: format!("10.0.0.{number}:8080"),
        method: "NAT".to_owned(),
        state: if number <= up { "up" } else { "down" }.to_owned(),
        administrative: "enabled".to_owned(),
        configured_weight: 1,
        weight: Some(u32::from(number <= up)),
        reason: (number > up).then(|| "http: status 503".to_owned()),
        ..Backend::default()
    };
    Balancer {
        name: format!("default/{name}"),
        frontend: "http".to_owned(),
        protocol: "TCP".to_owned(),
        scheduler: "wlc".to_owned(),
        quorum: Some(quorum),
        virtual_servers: vec![VirtualServer {
            address: format!("192.0.2.{last}:80"),
            method: "NAT".to_owned(),
            up,
            backends: 2,
            weight: Some(300),
            usage,
        }],
        backends: vec![backend(1), backend(2)],
        ..Balancer::default()
    }
}

fn overview() -> Overview {
    Overview {
        at: "2026-01-02T03:04:05Z".to_owned(),
        revision: Some(7),
        balancers: vec![
            balancer("api", 1, 2, true, usage(5, 1.0)),
            balancer("dns", 2, 1, true, usage(900, 0.0)),
            balancer("mail", 3, 2, true, usage(20, 310.0)),
            balancer("web", 4, 0, false, None),
        ],
        ..Overview::default()
    }
}

fn view(with_backends: bool) -> View {
    let mut view = View::new(with_backends);
    view.take(Ok(overview()));
    view
}

fn frame(view: &View, width: u16, height: u16) -> (Vec<String>, ratatui::buffer::Buffer) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| {
        let cells = (0..width).map(|x| buffer[(x, y)].symbol().to_owned());
        cells.collect::<String>().trim_end().to_owned()
    };
    ((0..height).map(line).collect(), buffer)
}

fn press(view: &mut View, code: KeyCode) -> Flow {
    view.press(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(view: &mut View, text: &str) {
    for letter in text.chars() {
        assert_eq!(press(view, KeyCode::Char(letter)), Flow::Continue);
    }
}

/// The names of the rows, in the order of the frame.
fn names(view: &View) -> Vec<String> {
    let (lines, _) = frame(view, 80, 24);
    let rows = lines
        .iter()
        .filter_map(|line| line.strip_prefix("default/"));
    rows.filter_map(|row| row.split(' ').next().map(ToOwned::to_owned))
        .collect()
}

#[test]
fn a_small_terminal_has_room_for_what_matters() {
    let (lines, buffer) = frame(&view(false), 80, 24);
    let expected = [
        "2026-01-02T03:04:05Z  revision 7  4 virtual servers: 1 bad, 1 reduced",
        "NAME          FRONTEND          UP   WEIGHT  ACTIVE  INACT  CONN/s  IN/s  OUT/s",
        "default/web   TCP 192.0.2.4:80  0/2  300     -       -      -       -     -",
        "default/dns   TCP 192.0.2.2:80  1/2  300     900     0      0       0     0",
        "default/api   TCP 192.0.2.1:80  2/2  300     5       0      1.0     0     0",
        "default/mail  TCP 192.0.2.3:80  2/2  300     20      0      310     0     0",
    ];
    assert_eq!(lines[..6], expected);
    assert_eq!(lines[22], "# default/web:http: no quorum");
    assert_eq!(lines[23], "q quit  s sort: health  / filter  ↑↓ scroll");
    let colours = [2, 3, 4].map(|y| buffer[(0, y)].fg);
    assert_eq!(colours, [Color::Red, Color::Yellow, Color::Reset]);
    // A wide one has all columns.
    let (lines, _) = frame(&view(false), 120, 24);
    assert!(
        lines[1].contains("METHOD") && lines[1].contains("SCHED"),
        "{}",
        lines[1]
    );
}

#[test]
fn no_size_is_too_small() {
    for (width, height) in [(1, 1), (10, 2), (20, 3), (79, 5), (300, 100)] {
        for with_backends in [false, true] {
            let mut view = view(with_backends);
            press(&mut view, KeyCode::End);
            frame(&view, width, height);
        }
    }
    frame(&View::new(true), 80, 24);
}

#[test]
fn rows_are_sorted_and_filtered() {
    let mut view = view(false);
    assert_eq!(names(&view), ["web", "dns", "api", "mail"]);
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(names(&view), ["api", "dns", "mail", "web"]);
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(names(&view), ["dns", "mail", "api", "web"]);
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(names(&view), ["mail", "api", "dns", "web"]);
    press(&mut view, KeyCode::Char('s'));
    assert_eq!(view.sort, view::Sort::Health);
    // Letters of a filter are no commands.
    type_text(&mut view, "/qs");
    assert_eq!((view.browse.filter.as_str(), names(&view).len()), ("qs", 0));
    for _ in 0..3 {
        press(&mut view, KeyCode::Backspace);
    }
    type_text(&mut view, "2.3");
    press(&mut view, KeyCode::Enter);
    assert_eq!(names(&view), ["mail"]);
    press(&mut view, KeyCode::Esc);
    assert_eq!(names(&view).len(), 4);
}

#[test]
fn the_last_answer_stays_while_the_agent_is_silent() {
    let mut view = view(false);
    view.take(Err(anyhow::anyhow!("no agent\x1b[2J answers")));
    let (lines, _) = frame(&view, 80, 24);
    assert!(
        lines.contains(&"# no agent [2J answers".to_owned()),
        "{lines:#?}"
    );
    assert_eq!(names(&view).len(), 4);
    view.take(Ok(overview()));
    assert_eq!(view.error, None);
}

#[test]
fn many_rows_are_scrolled_and_many_notes_are_counted() {
    let mut view = view(false);
    let mut many = overview();
    many.balancers = (0..40)
        .map(|number| balancer(&format!("b{number:02}"), number, 0, false, None))
        .collect();
    view.take(Ok(many));
    let (lines, _) = frame(&view, 80, 24);
    assert_eq!(lines[22], "# 35 more: `portolan-agent status`");
    assert_eq!(names(&view).first().unwrap(), "b00");
    press(&mut view, KeyCode::PageDown);
    press(&mut view, KeyCode::Down);
    assert_eq!(names(&view).first().unwrap(), "b11");
    press(&mut view, KeyCode::End);
    assert_eq!(names(&view), ["b39"]);
    // Rows that go take the place with them.
    view.take(Ok(overview()));
    assert_eq!(names(&view).len(), 1);
    press(&mut view, KeyCode::Home);
    assert_eq!(names(&view).len(), 4);
}

#[test]
fn one_load_balancer_has_its_backends_with_reasons() {
    let mut one = overview();
    one.balancers.drain(..1);
    one.balancers.truncate(1);
    let mut view = View::new(true);
    view.take(Ok(one));
    let (lines, buffer) = frame(&view, 80, 24);
    assert!(lines[3].starts_with("BACKEND"), "{lines:#?}");
    assert!(
        lines[4].starts_with("10.0.0.2:8080") && lines[4].contains("status 503"),
        "{lines:#?}"
    );
    assert!(lines[5].starts_with("10.0.0.1:8080"), "{lines:#?}");
    assert_eq!(buffer[(0, 4)].fg, Color::Red);
}

#[test]
fn q_and_control_c_quit() {
    let mut view = view(false);
    assert_eq!(press(&mut view, KeyCode::Char('c')), Flow::Continue);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.press(control_c), Flow::Quit);
    press(&mut view, KeyCode::Char('/'));
    assert_eq!(view.press(control_c), Flow::Quit);
    press(&mut view, KeyCode::Esc);
    assert_eq!(press(&mut view, KeyCode::Char('q')), Flow::Quit);
}
