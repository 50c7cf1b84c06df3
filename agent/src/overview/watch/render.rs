// SPDX-License-Identifier: Apache-2.0

//! The live view as a frame. Pure: the same view and size give the same frame.

use portolan_terminal::{Cells, Condition, draw_table};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::super::table::{BACKEND_HEADINGS, HEADINGS, backend_row, notes, plain, row};
use super::view::{View, backend_condition, condition};

/// Columns of virtual servers that a narrow terminal lacks, the first one first. They are places in [`HEADINGS`].
const DISPENSABLE: [usize; 7] = [3, 2, 7, 10, 9, 5, 8];

/// Columns of backends that a narrow terminal lacks, the first one first. They are places in [`BACKEND_HEADINGS`].
const DISPENSABLE_OF_BACKENDS: [usize; 8] = [1, 7, 10, 9, 8, 3, 6, 11];

/// Lines of notes, at most.
const MAX_NOTES: u16 = 6;

/// Rows of virtual servers above those of backends, at most.
const MAX_SERVERS: u16 = 6;

/// Draws the view.
pub(super) fn draw(view: &View, frame: &mut Frame<'_>) {
    let rows = view.rows();
    let servers: Vec<Cells> = rows
        .iter()
        .map(|(balancer, server)| (row(balancer, server).to_vec(), condition(balancer, server)))
        .collect();
    let notes = notes_of(view);
    let of_notes = u16::try_from(notes.len()).unwrap_or(MAX_NOTES);
    let of_servers = match view.with_backends {
        true => Constraint::Length(1 + height(&servers).min(MAX_SERVERS)),
        false => Constraint::Fill(1),
    };
    let of_backends = match view.with_backends {
        true => Constraint::Fill(1),
        false => Constraint::Length(0),
    };
    let areas = Layout::vertical([
        Constraint::Length(1),
        of_servers,
        of_backends,
        Constraint::Length(of_notes.min(MAX_NOTES)),
        Constraint::Length(1),
    ]);
    let [head, top, bottom, below, foot] = areas.areas(frame.area());
    frame.render_widget(heading(view, &servers), head);
    let of_top = if view.with_backends {
        0
    } else {
        view.browse.offset
    };
    draw_table(
        frame,
        top,
        &HEADINGS,
        &DISPENSABLE,
        &servers[of_top.min(servers.len())..],
    );
    if view.with_backends {
        let backends = view.backends();
        let cells: Vec<Cells> = backends
            .iter()
            .map(|(_, each)| (backend_row(each).to_vec(), backend_condition(each)))
            .collect();
        let shown = &cells[view.browse.offset.min(cells.len())..];
        draw_table(
            frame,
            bottom,
            &BACKEND_HEADINGS,
            &DISPENSABLE_OF_BACKENDS,
            shown,
        );
    }
    frame.render_widget(Paragraph::new(notes), below);
    frame.render_widget(Paragraph::new(footer(view)), foot);
}

fn height(rows: &[Cells]) -> u16 {
    u16::try_from(rows.len()).unwrap_or(u16::MAX - 1)
}

/// When the answer was given, and how many rows are not as they should be.
fn heading(view: &View, servers: &[Cells]) -> Paragraph<'static> {
    let of = |wanted| servers.iter().filter(|(_, each)| *each == wanted).count();
    let (bad, reduced) = (of(Condition::Bad), of(Condition::Reduced));
    let revision = view.overview.revision;
    let revision = revision.map_or("no table yet".to_owned(), |number| {
        format!("revision {number}")
    });
    let text = format!(
        "{}  {revision}  {} virtual servers: {bad} bad, {reduced} reduced",
        view.overview.at,
        servers.len()
    );
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::BOLD))
}

/// Returns the notes: facts that the tables do not show.
fn notes_of(view: &View) -> Vec<Line<'static>> {
    let error = view.error.iter();
    let error = error.map(|error| Line::styled(format!("# {}", plain(error)), Color::Red));
    let text = notes(&view.overview);
    let others = text.lines().map(|line| Line::raw(line.to_owned()));
    let lines: Vec<_> = error.chain(others).collect();
    let room = usize::from(MAX_NOTES);
    match lines.len().checked_sub(room) {
        None | Some(0) => lines,
        Some(left_out) => {
            let more = format!("# {} more: `portolan-agent status`", left_out + 1);
            let shown = lines.into_iter().take(room - 1);
            shown.chain([Line::raw(more)]).collect()
        }
    }
}

fn footer(view: &View) -> Line<'static> {
    if view.browse.is_typing {
        return Line::raw(format!(
            "filter: {}_  Enter keep  Esc clear",
            view.browse.filter
        ));
    }
    let filter = match view.browse.filter.as_str() {
        "" => String::new(),
        filter => format!("  filter: {filter}"),
    };
    let sort = view.sort.name();
    Line::raw(format!(
        "q quit  s sort: {sort}  / filter{filter}  ↑↓ scroll"
    ))
}
