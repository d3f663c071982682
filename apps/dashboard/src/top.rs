//! `top`: the dashboard in a terminal, over the same interface as the page.
//!
//! This module does not know the grid: it shows the dashboard's data.

use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Sparkline, Widget, Wrap};
use serde_json::Value;
use springtide_cli::exit::{Exit, Failed};
use springtide_cli::format::plural;
use springtide_cli::print::print;

use crate::sentence;

/// Interval between requests to the dashboard.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the dashboard's answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of points of the efficiency chart.
const POINTS_MAX: usize = 600;
/// Maximum number of events kept.
const EVENTS_MAX: usize = 500;
/// Width of a frame that is written to a file or a pipe, unless COLUMNS says another.
const PLAIN_WIDTH: u16 = 110;
/// The widths that a plain frame may have.
const PLAIN_WIDTHS: std::ops::RangeInclusive<u16> = 40..=500;
/// The maximum height of a plain frame.
const PLAIN_HEIGHT: u16 = 40;
/// The least width of a cluster's bar.
const BAR_MIN: usize = 10;
/// The maximum length of a cluster's name.
const NAME_MAX: usize = 20;
/// The maximum width of a column of running tasks.
const TASK_WIDTH_MAX: usize = 50;
/// The space between two columns of running tasks.
const TASK_GAP: usize = 3;
/// Signs of the fraction of work, from none to all.
const SHADES: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The five states of a thread, with sign and colour.
const STATES: [(char, Color, &str); 5] = [
    ('█', Color::Blue, "work"),
    ('░', Color::DarkGray, "idle"),
    ('▒', Color::Yellow, "wait inside"),
    ('▓', Color::Red, "wait between"),
    ('b', Color::Magenta, "benchmark"),
];

/// Shows the dashboard at this URL until it is ended; without a terminal, prints one frame as text.
///
/// # Errors
/// The token cannot be read, the dashboard does not answer, or the terminal does not work.
pub fn top(url: &str, token_file: Option<&Path>, once: bool) -> Result<(), Failed> {
    let client = DashboardClient::new(url, token_file)?;
    let mut shown = Screen { colours: std::env::var_os("NO_COLOR").is_none(), ..Screen::default() };
    shown.history(&client.get("/api/v1/history")?);
    shown.take(client.snapshot(0)?);
    shown.clock = clock();
    if once || !stdout().is_terminal() {
        // The first answer may be some seconds old, because the dashboard gathers data only for
        // readers.
        std::thread::sleep(POLL_INTERVAL);
        shown.take(client.snapshot(shown.last)?);
        let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = width.filter(|width| PLAIN_WIDTHS.contains(width)).unwrap_or(PLAIN_WIDTH);
        return print(&shown.text((width, PLAIN_HEIGHT)));
    }
    let (sender, snapshots) = mpsc::channel();
    let mut last = shown.last;
    std::thread::spawn(move || {
        loop {
            let snapshot = client.snapshot(last);
            if let Ok(snapshot) = &snapshot {
                last = newest(&snapshot.events).max(last);
            }
            if sender.send(snapshot).is_err() {
                return; // the command ends
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    });
    let mut terminal = ratatui::try_init().map_err(Failed::failure)?;
    let ended = screen(&mut terminal, &mut shown, &snapshots);
    ratatui::restore();
    ended.map_err(Failed::failure)
}

fn screen(
    terminal: &mut ratatui::DefaultTerminal,
    shown: &mut Screen,
    snapshots: &mpsc::Receiver<Result<Snapshot, Failed>>,
) -> std::io::Result<()> {
    loop {
        while let Ok(snapshot) = snapshots.try_recv() {
            match snapshot {
                Ok(snapshot) => {
                    shown.take(snapshot);
                    shown.clock = clock();
                }
                Err(failed) => shown.error = Some(failed.message),
            }
        }
        terminal.draw(|frame| shown.draw(frame.area(), frame.buffer_mut()))?;
        if !event::poll(Duration::from_millis(200))? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind != KeyEventKind::Press {
            continue;
        }
        let ctrl_c =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            _ if ctrl_c => return Ok(()),
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('j') | KeyCode::Down => shown.scroll = shown.scroll.saturating_add(1),
            KeyCode::Char('k') | KeyCode::Up => shown.scroll = shown.scroll.saturating_sub(1),
            KeyCode::Home => shown.scroll = 0,
            KeyCode::Tab => shown.next_job(),
            _ => {}
        }
    }
}

struct DashboardClient {
    agent: ureq::Agent,
    url: String,
    token: Option<String>,
}

/// The dashboard's state at one time.
struct Snapshot {
    tick: Value,
    events: Vec<Value>,
}

fn newest(events: &[Value]) -> u64 {
    events.iter().filter_map(|event| event["id"].as_u64()).max().unwrap_or(0)
}

impl DashboardClient {
    fn new(url: &str, token_file: Option<&Path>) -> Result<Self, Failed> {
        let token = token_file.map(crate::read_token).transpose()?;
        let config = ureq::Agent::config_builder().timeout_global(Some(REQUEST_TIMEOUT)).build();
        let url = url.trim_end_matches('/').to_owned();
        Ok(Self { agent: config.into(), url, token })
    }

    fn get(&self, path: &str) -> Result<Value, Failed> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let wrong = |error: ureq::Error| match error {
            ureq::Error::StatusCode(401) => Failed::new(
                Exit::Auth,
                format!("{} requires a token: add --token-file FILE", self.url),
            ),
            error => Failed::failure(format!("{}: {error}", self.url)),
        };
        let text = request.call().map_err(wrong)?.body_mut().read_to_string().map_err(wrong)?;
        serde_json::from_str(&text)
            .map_err(|error| Failed::failure(format!("{}{path}: {error}", self.url)))
    }

    fn snapshot(&self, after: u64) -> Result<Snapshot, Failed> {
        let tick = self.get("/api/v1/snapshot")?;
        let body = self.get(&format!("/api/v1/events?after={after}"))?;
        let events = body["events"].as_array().cloned().unwrap_or_default();
        Ok(Snapshot { tick, events })
    }
}

/// The content of the screen.
#[derive(Default)]
struct Screen {
    tick: Value,
    events: Vec<Value>,
    last: u64,
    /// Efficiency over time of the shown job.
    points: Vec<f64>,
    job: u64,
    chosen: bool,
    scroll: usize,
    /// The failure of the last request, if it failed.
    error: Option<String>,
    colours: bool,
    /// The time of day of the last answer.
    clock: Option<String>,
}

impl Screen {
    fn running(&self) -> Vec<&Value> {
        let jobs = self.tick["jobs"].as_array();
        jobs.into_iter().flatten().filter(|job| job["clusters"].is_object()).collect()
    }

    fn job(&self) -> Option<&Value> {
        self.running().into_iter().find(|job| job["id"] == self.job)
    }

    /// Takes over the jobs' histories; the latest job's continues.
    fn history(&mut self, history: &Value) {
        let jobs = history["jobs"].as_object();
        let last = jobs.and_then(|jobs| {
            jobs.iter()
                .filter_map(|(id, p)| Some((id.parse().ok()?, p)))
                .max_by_key(|(id, _): &(u64, _)| *id)
        });
        let Some((job, points)) = last else { return };
        let of = |point: &Value| point[1].as_f64();
        self.job = job;
        self.points = points.as_array().into_iter().flatten().filter_map(of).collect();
    }

    fn take(&mut self, snapshot: Snapshot) {
        self.error = None;
        self.tick = snapshot.tick;
        let known = self.last;
        self.last = newest(&snapshot.events).max(known);
        let fresh = snapshot.events.into_iter().filter(|event| event["id"].as_u64() > Some(known));
        self.events.extend(fresh);
        let over = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..over);
        let ids: Vec<u64> = self.running().iter().filter_map(|job| job["id"].as_u64()).collect();
        if !(self.chosen && ids.contains(&self.job))
            && let Some(first) = ids.first().filter(|first| **first != self.job)
        {
            (self.job, self.chosen) = (*first, false);
            self.points.clear();
        }
        let working = self.job().and_then(efficiency);
        self.points.extend(working);
        let over = self.points.len().saturating_sub(POINTS_MAX);
        self.points.drain(..over);
    }

    fn next_job(&mut self) {
        let ids: Vec<u64> = self.running().iter().filter_map(|job| job["id"].as_u64()).collect();
        let at = ids.iter().position(|id| *id == self.job).map_or(0, |at| at + 1);
        if let Some(next) = ids.get(at).or(ids.first()) {
            (self.job, self.chosen) = (*next, true);
            self.points.clear();
        }
    }

    /// Formats a frame as plain text.
    fn text(&self, (width, height): (u16, u16)) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        self.draw(area, &mut buffer);
        // A file takes no keys.
        let height = height.saturating_sub(1);
        let row = |y: u16| -> String {
            let cells = (0..width).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        let mut text = (0..height).map(row).collect::<Vec<_>>().join("\n");
        text.truncate(text.trim_end().len());
        text + "\n"
    }

    fn style(&self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    fn draw(&self, area: Rect, buffer: &mut Buffer) {
        let clusters = self.clusters(area.width);
        let rows = u16::try_from(clusters.len()).unwrap_or(u16::MAX).min(area.height / 2);
        let tasks = self.tasks(area);
        let task_rows = u16::try_from(tasks.len()).unwrap_or(u16::MAX);
        let [head, line, chart, middle, running, log, foot] = Layout::vertical([
            Constraint::Length(1),
            // A narrow screen gives the job's line more room.
            Constraint::Length(if area.width < 80 { 3 } else { 2 }),
            Constraint::Length(5),
            Constraint::Length(rows),
            Constraint::Length(task_rows),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(area);
        self.head(area.width).render(head, buffer);
        Paragraph::new(self.about()).wrap(Wrap { trim: true }).render(line, buffer);
        self.chart(chart, buffer);
        Paragraph::new(clusters).render(middle, buffer);
        Paragraph::new(tasks).render(running, buffer);
        Paragraph::new(self.log(log)).render(log, buffer);
        let keys = "q ends   tab next job   j k scroll   Home newest";
        Line::styled(keys, self.style(Color::DarkGray)).render(foot, buffer);
    }

    fn head(&self, width: u16) -> Line<'_> {
        let rows = || {
            self.tick["clusters"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|c| c["w"].as_array().into_iter().flatten())
        };
        let count = |states: &[u64]| {
            rows().filter(|row| row[5].as_u64().is_some_and(|s| states.contains(&s))).count()
        };
        let (all, broken) = (rows().count(), count(&[6]));
        let clusters = self.tick["clusters"].as_array().map_or(0, Vec::len);
        let mut text = format!(
            "{} · {clusters} {} · {}/{all} {}, {} busy",
            self.tick["grid"].as_str().unwrap_or("?"),
            plural(clusters as u64, "cluster"),
            all - count(&[6, 7]),
            plural(all as u64, "worker"),
            count(&[1])
        );
        if broken > 0 {
            text += &format!(", {broken} broken");
        }
        if let Some(at) = self.tick["at"].as_f64() {
            text += &format!(" · up {}", duration(at));
        }
        if let Some(clock) = &self.clock {
            let clock = format!(" · {clock} UTC");
            // A cut time says nothing.
            if text.chars().count() + clock.chars().count() <= usize::from(width) {
                text += &clock;
            }
        }
        let text = cut(&text, width.into());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        match &self.error {
            None => Line::styled(text, bold),
            Some(why) => Line::from(vec![
                Span::styled(text, bold),
                Span::styled(format!("  STALE: {why}"), self.style(Color::Red)),
            ]),
        }
    }

    fn about(&self) -> String {
        let Some(job) = self.job() else {
            let waiting = self.tick["jobs"].as_array().map_or(0, Vec::len);
            return match waiting {
                0 => "no job runs".to_owned(),
                1 => "no job runs, 1 waits".to_owned(),
                n => format!("no job runs, {n} wait"),
            };
        };
        let mut parts = vec![format!("job {} {}", job["id"], job["name"].as_str().unwrap_or("?"))];
        if let (Some(done), what) = (job["progress"][0].as_u64(), job["progress"][2].as_str()) {
            let of = job["progress"][1].as_u64().map(|total| format!(" of {total}"));
            parts.push(format!("{done}{} {}", of.unwrap_or_default(), what.unwrap_or_default()));
        }
        parts.push(duration(job["elapsed"].as_f64().unwrap_or(0.0)));
        let band = (&job["band"][0], &job["band"][1]);
        parts.push(match job["eff"].as_f64() {
            Some(efficiency) => {
                format!("efficiency {efficiency:.2} (band {} to {})", band.0, band.1)
            }
            None => match job["mode"].as_str() {
                Some("static") => "efficiency is not measured: the job is static".to_owned(),
                Some(_) => "efficiency is not yet measured".to_owned(),
                None => "efficiency is not known".to_owned(),
            },
        });
        let thought = job["thought"].as_array().and_then(|thought| thought.last()?.as_str());
        parts.extend(thought.map(|last| format!("now: {last}")));
        parts.join(" · ")
    }

    fn chart(&self, area: Rect, buffer: &mut Buffer) {
        let [title, line] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
        let what = match self.job() {
            None if self.points.is_empty() => "the chart fills while a job runs",
            Some(job) if job["eff"].is_number() => {
                "weighted average efficiency, 0 to 1, newest last"
            }
            _ => "part of time that is work, 0 to 1, newest last",
        };
        Line::styled(what, self.style(Color::DarkGray)).render(title, buffer);
        let from = self.points.len().saturating_sub(usize::from(line.width));
        let data: Vec<u64> = self.points[from..].iter().map(|e| (e * 1000.0) as u64).collect();
        Sparkline::default()
            .data(data)
            .max(1000)
            .style(self.style(Color::Blue))
            .render(line, buffer);
    }

    /// Two lines for each cluster: its numbers, and its workers by their fraction of work.
    fn clusters(&self, width: u16) -> Vec<Line<'_>> {
        let mut lines = Vec::new();
        let legend = STATES.iter().flat_map(|(sign, colour, name)| {
            [Span::styled(sign.to_string(), self.style(*colour)), Span::raw(format!(" {name}  "))]
        });
        lines.push(Line::from(legend.collect::<Vec<_>>()));
        let job = self.job();
        let names = self.tick["clusters"].as_array().into_iter().flatten();
        let lengths = names.filter_map(|cluster| Some(cluster["name"].as_str()?.chars().count()));
        let name_width = lengths.max().unwrap_or(0).clamp(3, NAME_MAX);
        // Behind the name stand the workers, before the text its numbers.
        let room = usize::from(width).saturating_sub(name_width + 11);
        let facts = |part: &Value| {
            let tasks = match part["tasks"].as_u64() {
                Some(tasks) => format!("{tasks} {}", plural(tasks, "task")),
                None => "no task counted yet".to_owned(),
            };
            let nodes = part["n"].as_u64().unwrap_or(0);
            let nodes = format!("{nodes} {}", plural(nodes, "node"));
            let work = part["t"][0].as_u64().unwrap_or(0);
            format!("  {work:>3} % work, {nodes}, {tasks}")
        };
        let parts = job.and_then(|job| job["clusters"].as_object()).into_iter().flatten();
        let facts_width = parts.map(|(_, part)| facts(part).chars().count()).max().unwrap_or(0);
        let bar = room.saturating_sub(facts_width).max(BAR_MIN);
        for cluster in self.tick["clusters"].as_array().into_iter().flatten() {
            let full = cluster["name"].as_str().unwrap_or("?").to_owned();
            let name = full.as_str();
            let rows = cluster["w"].as_array().map_or(&[][..], Vec::as_slice);
            let there = rows.iter().filter(|row| !matches!(row[5].as_u64(), Some(6 | 7))).count();
            let name = cut(name, name_width);
            let count = format!("{name:<name_width$} {there:>4}/{:<4} ", rows.len());
            let mut spans = vec![Span::raw(count)];
            let part = job.map(|job| &job["clusters"][&full]).filter(|part| part.is_object());
            match part {
                Some(part) => {
                    let share = |i: usize| part["t"][i].as_u64().unwrap_or(0) as usize;
                    let mut sum = 0;
                    for (i, (sign, colour, _)) in STATES.iter().enumerate() {
                        // Of the ends, so that the cells fill the bar.
                        let start = sum * bar / 100;
                        sum = (sum + share(i)).min(100);
                        let cells = sum * bar / 100 - start;
                        spans.push(Span::styled(
                            sign.to_string().repeat(cells),
                            self.style(*colour),
                        ));
                    }
                    let used = name_width + 11 + bar;
                    let left = usize::from(width).saturating_sub(used);
                    spans.push(Span::raw(cut(&facts(part), left)));
                }
                None if job.is_none() => {}
                None => spans.push(Span::raw("no worker of this job")),
            }
            if let Some(why) = cluster["failing"].as_str() {
                spans.push(Span::styled(format!("  {why}"), self.style(Color::Red)));
            }
            lines.push(Line::from(spans));
            let room = usize::from(width).saturating_sub(16);
            let mut cells: String = rows.iter().take(room).map(tile).collect();
            if rows.len() > room {
                cells += &format!("+{}", rows.len() - room);
            }
            lines.push(Line::from(vec![
                Span::raw("  "),
                Span::styled(cells, self.style(Color::Blue)),
            ]));
        }
        lines
    }

    /// The tasks of the job that run: its root, and in columns those that workers have stolen. They
    /// take a sixth of the screen at most.
    fn tasks(&self, area: Rect) -> Vec<Line<'_>> {
        let Some(job) = self.job() else { return Vec::new() };
        let running = job["running"].as_array().map_or(&[][..], Vec::as_slice);
        let more = job["more_running"].as_u64().unwrap_or(0) as usize;
        let root = job["root"].as_str();
        if running.is_empty() && root.is_none() {
            return Vec::new();
        }
        let width = usize::from(area.width);
        let count = (running.len() + more) as u64;
        let mut title = root.map_or_else(String::new, |root| format!("the root runs on {root}; "));
        title += &match count {
            0 => "no stolen task runs now".to_owned(),
            1 => "1 stolen task runs:".to_owned(),
            _ => format!("{count} stolen tasks run:"),
        };
        let dim = self.style(Color::DarkGray);
        let mut lines = vec![Line::styled(cut(&plain(&title), width), dim)];
        let entry = |task: &Value| {
            let part = |i: usize| plain(task[i].as_str().unwrap_or("?"));
            format!("{}: {} {} from {}", part(0), part(1), part(2), part(3))
        };
        let all: Vec<String> = running.iter().map(entry).collect();
        let longest = all.iter().map(|entry| entry.chars().count()).max().unwrap_or(0);
        // The sign of a cut stands inside the column.
        let column = longest.clamp(1, TASK_WIDTH_MAX.min(width.saturating_sub(2)).max(1));
        let per_row = (width.saturating_sub(2) + TASK_GAP) / (column + TASK_GAP);
        let per_row = per_row.max(1);
        let rows_max = usize::from(area.height / 6).max(1);
        let room = per_row * rows_max;
        let shown = if all.len() + more > room { room - 1 } else { all.len() };
        let mut cells: Vec<String> = all.iter().take(shown).map(|text| cut(text, column)).collect();
        let left = all.len() + more - shown;
        if left > 0 {
            cells.push(format!("+{left}"));
        }
        lines.extend(cells.chunks(per_row).map(|row| {
            let gap = " ".repeat(TASK_GAP);
            let row: Vec<String> = row.iter().map(|text| format!("{text:<column$}")).collect();
            Line::raw(format!("  {}", row.join(&gap).trim_end()))
        }));
        lines
    }

    fn log(&self, area: Rect) -> Vec<Line<'_>> {
        let width = usize::from(area.width);
        let events = self.events.iter().rev().skip(self.scroll);
        let mut lines = Vec::new();
        for event in events.take(usize::from(area.height)) {
            let (sign, colour) = match (event["sign"].as_i64(), event["kind"].as_str()) {
                (Some(1), _) => ('▲', Color::Green),
                (Some(-1), _) => ('▼', Color::Yellow),
                (_, Some("failed")) => ('✕', Color::Red),
                _ => (' ', Color::Reset),
            };
            let at = event["at"].as_f64().unwrap_or(0.0);
            let text = event["text"].as_str().unwrap_or("");
            let first = text.lines().next().unwrap_or("");
            let shown = cut(&plain(first), width.saturating_sub(EVENT_INDENT));
            lines.push(Line::from(vec![
                Span::styled(format!("{at:>8.1} s "), self.style(Color::DarkGray)),
                Span::styled(format!("{sign} "), self.style(colour)),
                Span::raw(shown),
            ]));
            for why in
                event["why"].as_array().into_iter().flatten().filter_map(Value::as_str).take(3)
            {
                let why = cut(&sentence(&plain(why)), width.saturating_sub(EVENT_INDENT));
                let indent = " ".repeat(EVENT_INDENT);
                lines.push(Line::styled(format!("{indent}{why}"), self.style(Color::DarkGray)));
            }
        }
        lines.truncate(usize::from(area.height));
        lines
    }
}

/// The width of an event's time and sign.
const EVENT_INDENT: usize = 13;

/// A text without control characters.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// A text of at most this width; `…` marks what is cut off.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let start: String = text.chars().take(width.saturating_sub(1)).collect();
    if width == 0 { start } else { start + "…" }
}

/// Seconds as people say them, as on the page.
fn duration(seconds: f64) -> String {
    // Not negative, and far below 2^64.
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{}:{:02} min", whole / 60, whole % 60),
        _ => format!("{}:{:02} h", whole / 3600, whole % 3600 / 60),
    }
}

/// The time of day in UTC.
fn clock() -> Option<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    let day = now.as_secs() % 86_400;
    Some(format!("{:02}:{:02}:{:02}", day / 3600, day / 60 % 60, day % 60))
}

/// The job's efficiency; if it is not measured, the fraction of its threads' time that is work.
fn efficiency(job: &Value) -> Option<f64> {
    job["eff"].as_f64().or_else(|| {
        let parts: Vec<(f64, f64)> = job["clusters"]
            .as_object()?
            .values()
            .filter_map(|part| Some((part["n"].as_f64()?, part["t"][0].as_f64()?)))
            .collect();
        let nodes: f64 = parts.iter().map(|(n, _)| n).sum();
        (nodes > 0.0).then(|| parts.iter().map(|(n, work)| n * work).sum::<f64>() / nodes / 100.0)
    })
}

/// The sign of a worker: its fraction of work, or its state.
fn tile(row: &Value) -> char {
    match row[5].as_u64() {
        Some(1 | 4) => {
            let work = row[0].as_u64().unwrap_or(0).min(100) as usize;
            SHADES[(work * (SHADES.len() - 1)).div_ceil(100)]
        }
        Some(0) => '○',
        Some(2) => '…',
        Some(3) => 'm',
        Some(5) => '-',
        Some(6) => '✕',
        Some(7) => ' ',
        _ => 'h',
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown() -> Screen {
        let mut shown = Screen::default();
        let tick = json!({
            "grid": "test", "at": 75.2,
            "jobs": [{
                "id": 3, "name": "barnes-hut", "state": "running", "elapsed": 12.0,
                "mode": "adaptive", "eff": 0.42, "band": [0.3, 0.5],
                "progress": [7, 10, "steps"], "thought": ["nothing was changed"],
                "root": "ams-1", "running": [["ams-2", "force", "/0.1", "ams-1"]],
                "clusters": { "ams": { "n": 2, "t": [60, 20, 12, 4, 4], "tasks": 1234 } },
            }],
            "clusters": [
                {
                    "name": "ams",
                    "w": [[100, 0, 0, 0, 90, 1, 3], [50, 50, 0, 0, 90, 1, 3], [0, 0, 0, 0, -1, 0]],
                },
                { "name": "bud", "failing": "sinfo does not answer", "w": [[0, 0, 0, 0, -1, 6]] },
            ],
        });
        let body = json!([
            { "id": 1, "at": 3.0, "kind": "member", "text": "node ams-3 left\u{1b}[31m\nmore" },
            {
                "id": 2, "at": 4.0, "kind": "adapt", "sign": -1, "text": "removed bud-1",
                "why": ["it is slow"],
            },
        ]);
        shown.take(Snapshot { tick, events: body.as_array().cloned().unwrap() });
        shown
    }

    #[test]
    fn a_frame_has_this_text() {
        let text = shown().text((100, 20));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "test · 2 clusters · 3/4 workers, 2 busy, 1 broken · up 1:15 min");
        assert!(lines[1].starts_with(
            "job 3 barnes-hut · 7 of 10 steps · 12 s · efficiency 0.42 (band 0.3 to 0.5)"
        ));
        assert!(
            text.contains(
                "ams    3/3    ███████████████████████████████░░░░░░░░░░░▒▒▒▒▒▒▓▓bbb   60 % work, \
                 2 nodes, 1234 tasks"
            ),
            "{text}"
        );
        assert!(text.contains("\n  █▄○\n"), "{text}");
        assert!(text.contains("no worker of this job  sinfo does not answer"), "{text}");
        let tasks = "the root runs on ams-1; 1 stolen task runs:\n  ams-2: force /0.1 from ams-1\n";
        assert!(text.contains(tasks), "{text}");
        // The newest first. Control characters are removed.
        assert!(
            text.contains(
                "4.0 s ▼ removed bud-1\n             it is slow.\n     \
                3.0 s   node ams-3 left[31m\n"
            ),
            "{text}"
        );
        // A narrow frame marks what it cuts, and has no wider line.
        let narrow = shown().text((44, 20));
        assert!(narrow.lines().all(|line| line.chars().count() <= 44), "{narrow}");
        assert!(narrow.contains("60 % work, 2 nod…\n"), "{narrow}");
    }

    #[test]
    fn running_tasks_fill_the_width_and_say_how_many_are_left_out() {
        let mut shown = shown();
        let task = |n: usize| json!([format!("ams-{n}"), "force", format!("/0.{n}"), "ams-1"]);
        shown.tick["jobs"][0]["running"] = (10..30).map(task).collect();
        shown.tick["jobs"][0]["more_running"] = json!(5);
        let text = |width: u16| {
            let lines = shown.tasks(Rect::new(0, 0, width, 24));
            lines.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let narrow = text(30);
        assert_eq!(narrow.len(), 5, "{narrow:?}");
        assert_eq!(narrow[1], "  ams-10: force /0.10 from am…");
        assert_eq!(narrow[4], "  +22");
        let wide = text(160);
        assert_eq!(wide[1].matches("force").count(), 4, "{wide:?}");
        assert!(wide[4].ends_with("+10") && wide.len() == 5, "{wide:?}");
    }

    #[test]
    fn a_repeated_event_is_shown_once() {
        let mut shown = shown();
        let (tick, events) = (shown.tick.clone(), shown.events.clone());
        shown.take(Snapshot { tick, events });
        assert_eq!(shown.events.len(), 2);
    }

    #[test]
    fn the_smallest_terminal_is_drawn_without_a_panic() {
        for size in [(1, 1), (10, 3), (20, 8), (300, 100)] {
            shown().text(size);
        }
    }
}
