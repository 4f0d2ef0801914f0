//! The screen: a title, rates, the connections, refusals with what to do, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState, Wrap};

use super::app::{App, Dialog, Order, moved, refusals, total};
use super::format::{amount, bytes};
use super::summary;
use super::text::{cells, title};

pub(super) fn draw(frame: &mut Frame<'_>, app: &App) {
    let refusals = refusal_lines(app);
    let summary: Vec<_> = summary::lines(&app.event)
        .into_iter()
        .map(Line::raw)
        .collect();
    let height = |lines: &[Line<'_>]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(0));
    let [head, rates, whole, list, reasons, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        height(&summary),
        Constraint::Min(3),
        height(&refusals),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Line::styled(title(&app.event), BOLD), head);
    frame.render_widget(Line::raw(rates_line(app)), rates);
    frame.render_widget(Paragraph::new(summary), whole);
    if !matches!(app.event.command.as_str(), "intercept" | "exec") {
        draw_connections(frame, app, list);
    }
    frame.render_widget(Paragraph::new(refusals), reasons);
    frame.render_widget(Line::styled(foot_line(app), BOLD), foot);
    if app.dialog == Dialog::Help {
        draw_help(frame);
    }
}

fn rates_line(app: &App) -> String {
    let rate = |name: &'static str| amount(app.rate(|event| total(event, name, None)));
    let now = |name| amount(total(&app.event, name, None));
    let open = summary::open(&app.event);
    match app.event.command.as_str() {
        "intercept" => format!(
            "{open}   requests {}/s   checks {}/s   certificates issued {}",
            rate("peername_intercept_requests_total"),
            rate("peername_check_total"),
            now("peername_certificates_issued_total"),
        ),
        "exec" => summary::exec(&app.event),
        _ => format!(
            "{open}   new {}/s   UDP sessions {}   to backends {}/s   to clients {}/s",
            rate("peername_connections_accepted_total"),
            now("peername_udp_sessions"),
            bytes(app.rate(|event| moved(event).0) as u64),
            bytes(app.rate(|event| moved(event).1) as u64),
        ),
    }
}

fn draw_connections(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let order = match app.order {
        Order::Bytes => "most bytes first",
        Order::Age => "oldest first",
    };
    let rows = app.rows().into_iter().map(|one| Row::new(cells(one)));
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

fn refusal_lines(app: &App) -> Vec<Line<'static>> {
    let first = refusals(&app.event).into_iter().take(MAX_REFUSALS);
    let line = |(reason, count, advice)| Line::raw(format!("{reason} {count}: {advice}"));
    first.map(line).collect()
}

fn foot_line(app: &App) -> String {
    match (app.dialog, app.message.as_ref().or(app.lost.as_ref())) {
        (Dialog::Close(id, client), _) => {
            let of = client.map(|client| format!(" of {client}"));
            let of = of.unwrap_or_default();
            format!(
                "Close connection {id}{of}? Both sides are reset. y: close, other keys: keep it"
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
const HELP: &str = "q, Esc     quit
s          sort by bytes or by age
up, down   select a connection (Home, End: the first, the last)
k          close the selected connection; over a Unix socket only
?          this help; any key closes it

Below the connections: why clients were refused, how often since the start, and what to do about it.";
