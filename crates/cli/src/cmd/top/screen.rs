//! The screen: a title, rates, the connections, refusals with what to do, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::app::{App, Dialog, Order, moved_bytes, refusals, total};
use super::format::{amount, bytes, wrap};
use super::summary;
use super::text::{cells, title};

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let Rect { width, height, .. } = frame.area();
    let wrap = |text: &str| wrap(text, width.into());
    let head = wrap(&title(&app.event));
    let rates = wrap(&rates_line(app));
    let summary: Vec<_> = summary::lines(&app.event)
        .iter()
        .flat_map(|line| wrap(line))
        .collect();
    let foot = wrap(&foot_line(app));
    let other_lines = head.len() + rates.len() + summary.len() + foot.len();
    let max_lines = usize::from(height).saturating_sub(other_lines + MIN_LIST);
    let reasons = refusal_lines(app, width.into(), max_lines);
    let length = |lines: &[String]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(0));
    let [
        head_area,
        rates_area,
        summary_area,
        list,
        reasons_area,
        foot_area,
    ] = Layout::vertical([
        length(&head),
        length(&rates),
        length(&summary),
        Constraint::Min(0),
        length(&reasons),
        length(&foot),
    ])
    .areas(frame.area());
    frame.render_widget(paragraph(head).style(BOLD), head_area);
    frame.render_widget(paragraph(rates), rates_area);
    frame.render_widget(paragraph(summary), summary_area);
    let lists_connections = !matches!(app.event.command.as_str(), "intercept" | "exec");
    if lists_connections {
        draw_connections(frame, app, list);
    }
    frame.render_widget(paragraph(reasons), reasons_area);
    frame.render_widget(paragraph(foot).style(BOLD), foot_area);
    if app.dialog == Dialog::Help {
        draw_help(frame);
    }
}

fn paragraph(lines: Vec<String>) -> Paragraph<'static> {
    Paragraph::new(lines.into_iter().map(Line::raw).collect::<Vec<_>>())
}

fn rates_line(app: &App) -> String {
    let rate = |name: &'static str| amount(app.rate(|event| total(event, name, None)));
    let current = |name| amount(total(&app.event, name, None));
    let open = summary::open(&app.event);
    match app.event.command.as_str() {
        "intercept" => format!(
            "{open}   requests {}/s   checks {}/s   certificates issued {}",
            rate("peername_intercept_requests_total"),
            rate("peername_check_total"),
            current("peername_certificates_issued_total"),
        ),
        "exec" => summary::exec(&app.event),
        _ => format!(
            "{open}   new {}/s   UDP sessions {}   to backends {}/s   to clients {}/s",
            rate("peername_connections_accepted_total"),
            current("peername_udp_sessions"),
            bytes(app.rate(|event| moved_bytes(event).0) as u64),
            bytes(app.rate(|event| moved_bytes(event).1) as u64),
        ),
    }
}

fn draw_connections(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let order = match app.order {
        Order::Bytes => "most bytes first",
        Order::Age => "oldest first",
    };
    let rows = app.rows().into_iter().map(|row| Row::new(cells(row)));
    let columns = ["client", "balancer", "backend", "state", "in", "out", "age"];
    let widths = [
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Fill(3),
        Constraint::Length(15),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(columns).style(BOLD))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(format!(" Connections and sessions, {order} ")));
    let mut state = TableState::new().with_selected(app.selected_row());
    frame.render_stateful_widget(table, area, &mut state);
}

/// The most frequent refusals with their advice, in at most `max_lines`; the first refusal in any case.
fn refusal_lines(app: &App, width: usize, max_lines: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for (reason, count, advice) in refusals(&app.event).into_iter().take(MAX_REFUSALS) {
        let refusal = wrap(&format!("{reason} {count}: {advice}"), width);
        if !lines.is_empty() && lines.len() + refusal.len() > max_lines {
            break;
        }
        lines.extend(refusal);
    }
    lines
}

fn foot_line(app: &App) -> String {
    match (app.dialog, app.message.as_ref().or(app.lost.as_ref())) {
        (Dialog::Close(id, client), _) => {
            let client = client.map_or_else(String::new, |client| format!(" of {client}"));
            format!(
                "Close connection {id}{client}? Both sides are reset. y: close, other keys: keep it"
            )
        }
        (_, Some(message)) => message.clone(),
        (_, None) => "q quit   s sort   arrows select   k close   ? help".to_owned(),
    }
}

fn draw_help(frame: &mut Frame<'_>) {
    let [area] = Layout::horizontal([Constraint::Max(64)]).areas(frame.area());
    let [area] = Layout::vertical([Constraint::Max(12)]).areas(area);
    let help = Paragraph::new(HELP)
        .wrap(Wrap { trim: false })
        .block(Block::bordered().title(" Help "));
    frame.render_widget(Clear, area);
    frame.render_widget(help, area);
}

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const MAX_REFUSALS: usize = 5;
/// Rows that the refusals leave to the table of connections: its frame, its header, and three connections.
const MIN_LIST: usize = 6;
const HELP: &str = "q, Esc     quit
s          sort by bytes or by age
up, down   select a connection (Home, End: the first, the last)
k          close the selected connection; over a Unix socket only
?          this help; any key closes it

Below the connections: why clients were refused, how often since the start, and what to do about it.";
