//! The drawing of `rdzv top`: a job in, a frame out.

use std::collections::BTreeSet;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Widget as _};
use rdzv_agent::observe::WorkerStatus;
use rdzv_core::quantity::count;

use super::job::{ALONE, Agent, Health, Job, OfWorker as _};
use super::ps::age;

/// Order of nodes and ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Health,
    Rank,
    Processor,
    Memory,
    Output,
}

impl Sort {
    /// Returns the next order.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Health => Self::Rank,
            Self::Rank => Self::Processor,
            Self::Processor => Self::Memory,
            Self::Memory => Self::Output,
            Self::Output => Self::Health,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Rank => "rank",
            Self::Processor => "cpu",
            Self::Memory => "memory",
            Self::Output => "output",
        }
    }
}

/// State of the display, which keys change.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// Index of the selected row.
    pub(super) selected: usize,
    /// `true` if healthy nodes and all ranks are shown.
    pub(super) is_expanded: bool,
    /// Nodes whose ranks are all shown.
    pub(super) expanded: BTreeSet<String>,
    pub(super) filter: String,
    /// `true` while the user types a filter.
    pub(super) is_typing: bool,
    pub(super) sort: Sort,
    /// Title and lines of the lower half.
    pub(super) pane: Option<(String, Vec<String>)>,
    /// Reason why the job is not up to date, if it is not.
    pub(super) lost: Option<String>,
    pub(super) has_colours: bool,
}

/// Row of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Row {
    /// Name of the agent.
    Node(String),
    /// Name of the agent, and the rank.
    Rank(String, u32),
    /// Numbers of healthy nodes and ranks that are not shown.
    Rest(usize, usize),
}

/// Jobs with at most this sum of nodes and ranks are shown completely.
const SMALL: usize = 10;

/// Jobs with at most this number of nodes have a row for each node.
const FEW_NODES: usize = 4;

impl View {
    /// Returns the rows of the tree.
    pub(super) fn rows(&self, job: &Job) -> Vec<Row> {
        let (nodes, ranks, _) = job.sizes();
        let is_small = nodes + ranks <= SMALL && self.filter.is_empty();
        let latest = latest(job);
        let mut agents: Vec<(&String, &Agent)> = job.agents.iter().collect();
        agents.sort_by_key(|(_, agent)| self.key_of_node(agent, latest));
        let (mut rows, mut rest) = (Vec::new(), (0, 0));
        for (name, agent) in agents {
            let is_wholly_shown =
                is_small || self.is_expanded || self.expanded.contains(name.as_str());
            let mut workers: Vec<&WorkerStatus> = agent.report.workers.iter().collect();
            workers.sort_by_key(|worker| self.key(worker, latest));
            let is_shown = |worker: &&&WorkerStatus| {
                if self.filter.is_empty() {
                    is_wholly_shown || health(worker, latest) < Health::Healthy
                } else {
                    self.matches(agent, worker, latest)
                }
            };
            let shown: Vec<&&WorkerStatus> = workers.iter().filter(is_shown).collect();
            let is_odd = agent.health() < Health::Healthy || nodes <= FEW_NODES;
            let is_odd = is_odd && self.filter.is_empty();
            if shown.is_empty() && !is_odd && !(is_wholly_shown && self.filter.is_empty()) {
                rest = (rest.0 + 1, rest.1 + workers.len());
                continue;
            }
            rows.push(Row::Node(name.clone()));
            let ranks = shown.iter().map(|worker| worker.identity.rank.0);
            rows.extend(ranks.map(|rank| Row::Rank(name.clone(), rank)));
        }
        if rest.0 > 0 && self.filter.is_empty() {
            rows.push(Row::Rest(rest.0, rest.1));
        }
        rows
    }

    fn matches(&self, agent: &Agent, worker: &WorkerStatus, latest: Latest) -> bool {
        let rank = worker.identity.rank.0.to_string();
        let node = agent.report.node.to_string();
        let state = state_of(worker, latest).0;
        rank == self.filter || node.contains(&self.filter) || state.contains(&self.filter)
    }

    fn key(&self, worker: &WorkerStatus, latest: Latest) -> (Health, u64, u32) {
        let rank = worker.identity.rank.0;
        let most = |value: Option<u64>| u64::MAX - value.unwrap_or(0);
        match self.sort {
            Sort::Health => (health(worker, latest), 0, rank),
            Sort::Rank => (Health::Failed, 0, rank),
            Sort::Processor => (Health::Failed, most(worker.processor.map(u64::from)), rank),
            Sort::Memory => (Health::Failed, most(worker.memory), rank),
            Sort::Output => (Health::Failed, worker.output.unwrap_or(0), rank),
        }
    }

    fn key_of_node(&self, agent: &Agent, latest: Latest) -> (Health, u64, u32) {
        let workers = agent.report.workers.iter();
        let worker = workers.map(|worker| self.key(worker, latest)).min();
        let rank = agent.report.group_rank.unwrap_or(u32::MAX);
        match self.sort {
            Sort::Health => {
                let health = agent.health();
                (
                    worker.map_or(health, |worker| health.min(worker.0)),
                    0,
                    rank,
                )
            }
            Sort::Rank => (Health::Failed, 0, rank),
            _ => worker.unwrap_or((Health::Ended, u64::MAX, rank)),
        }
    }
}

/// Minimum lag of the output of a worker that is behind.
///
/// The lag counts from the latest output of any worker. Reports may be two seconds old.
const BEHIND_SECONDS: u64 = 5;

/// Latest step and latest output of any worker.
type Latest = Option<(u64, u64)>;

fn latest(job: &Job) -> Latest {
    let reports = || job.agents.values().map(|agent| &agent.report);
    let workers = || reports().flat_map(|report| &report.workers);
    let step = workers().filter_map(|worker| worker.step).max()?;
    Some((step, workers().filter_map(|worker| worker.output).max()?))
}

/// Returns the number of steps that a running worker is behind the others.
///
/// `None` for one step, or if the worker's output is recent: this may be a matter of time.
fn behind(worker: &WorkerStatus, latest: Latest) -> Option<u64> {
    let (step, output) = latest?;
    let behind = step.checked_sub(worker.step?)?;
    let is_old = output >= worker.output? + BEHIND_SECONDS;
    (worker.running && behind > 1 && is_old).then_some(behind)
}

fn health(worker: &WorkerStatus, latest: Latest) -> Health {
    match behind(worker, latest) {
        Some(_) => Health::Waiting,
        None => worker.health(),
    }
}

fn state_of(worker: &WorkerStatus, latest: Latest) -> (String, Color) {
    match worker.exit_code {
        Some(0) => ("done".to_owned(), Color::DarkGray),
        Some(code @ ..0) => {
            let colour = match worker.health() {
                Health::Failed => Color::Red,
                _ => Color::Yellow,
            };
            (format!("signal {}", -code), colour)
        }
        Some(code) => (format!("exit {code}"), Color::Red),
        None => match behind(worker, latest) {
            Some(steps) => (format!("{steps} behind"), Color::Yellow),
            None => ("running".to_owned(), Color::Green),
        },
    }
}

/// Draws a frame at a time in seconds since the Unix epoch.
pub(super) fn draw(job: &Job, view: &View, now: f64, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let mut top = vec![header(job, now)];
    top.extend(alerts(job, view, width));
    top.push(columns());
    let height = usize::from(area.height);
    let rows = view.rows(job);
    let pane = view.pane.as_ref().map_or(0, |_| height / 2);
    let room = height.saturating_sub(top.len() + pane + 1).max(1);
    let first = (view.selected + 1).saturating_sub(room);
    let latest = latest(job);
    let shown = rows.iter().enumerate().skip(first).take(room);
    let mut lines = top;
    for (index, row) in shown {
        let mut line = drawn(job, row, latest, now);
        if index == view.selected {
            line = line.patch_style(Style::new().add_modifier(Modifier::REVERSED));
        }
        lines.push(line);
    }
    if let Some((title, text)) = &view.pane {
        lines.resize(height.saturating_sub(pane + 1), Line::default());
        let title = format!("── {title} {}", "─".repeat(width));
        lines.push(Line::from(title).style(Style::new().fg(Color::DarkGray)));
        let first = text.len().saturating_sub(pane.saturating_sub(1));
        lines.extend(text[first..].iter().map(|line| Line::from(line.clone())));
    }
    lines.resize(height.saturating_sub(1), Line::default());
    lines.push(footer(view, rows.len()));
    Paragraph::new(lines).render(area, buffer);
    if !view.has_colours {
        for cell in &mut buffer.content {
            cell.fg = Color::Reset;
        }
    }
}

fn header(job: &Job, now: f64) -> Line<'static> {
    let (nodes, ranks, running) = job.sizes();
    let reports = || job.agents.values().map(|agent| &agent.report);
    let used = reports()
        .map(|report| report.job_restarts)
        .max()
        .unwrap_or(0);
    let most = reports()
        .map(|report| report.max_restarts)
        .max()
        .unwrap_or(0);
    let began = reports().filter_map(|report| report.began);
    let began = began.fold(now, f64::min);
    let round = job
        .round()
        .map_or("-".to_owned(), |round| round.to_string());
    let text = format!(
        "  {}  {running}/{ranks} ranks running  round {round}  restarts {used}/{most}  {}",
        count(nodes, "node"),
        age(now - began)
    );
    let name = Span::styled(
        job.name().to_owned(),
        Style::new().add_modifier(Modifier::BOLD),
    );
    Line::from(vec![name, text.into()])
}

/// Maximum number of lines about slow ranks.
const MOST_SLOW: usize = 3;

/// Returns the lines about failures, slow ranks and waits.
fn alerts(job: &Job, view: &View, width: usize) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let mut push = |text: String, colour| {
        let cut: String = text.chars().take(width).collect();
        lines.push(Line::from(cut).style(Style::new().fg(colour)));
    };
    if let Some(lost) = &view.lost {
        push(format!("not up to date: {lost}"), Color::Red);
    }
    if let Some(failure) = job.failure() {
        let rank = failure
            .rank
            .map_or_else(String::new, |it| format!("rank {it} on "));
        push(
            format!("first failure: {rank}{}: {}", failure.host, failure.cause),
            Color::Red,
        );
    }
    if job.agents.values().any(|agent| agent.report.is_alone) {
        push(format!("this node only: {ALONE}"), Color::Yellow);
    }
    let silent = job.agents.values().filter(|agent| agent.is_silent);
    let silent: Vec<String> = silent.map(|agent| agent.report.node.to_string()).collect();
    if !silent.is_empty() {
        push(format!("silent: {}", silent.join(", ")), Color::Red);
    }
    let reports = job.agents.values().map(|agent| &agent.report);
    for (_, sentence) in reports.flat_map(|report| &report.slow).take(MOST_SLOW) {
        push(sentence.clone(), Color::Yellow);
    }
    let mut waits = job.agents.values().filter_map(|agent| {
        let wait = agent.report.awaiting.as_ref()?;
        Some((agent.report.node.to_string(), wait))
    });
    if let Some((node, wait)) = waits.next() {
        // The name of the job is in the header.
        let wait = wait
            .split_once("] ")
            .map_or(wait.as_str(), |(_, wait)| wait);
        let others = match waits.count() {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let text = format!("{node}{others}: {wait}");
        let letters: Vec<char> = text.chars().collect();
        for part in letters.chunks(width.max(1)).take(2) {
            push(part.iter().collect(), Color::Yellow);
        }
    }
    lines
}

fn columns() -> Line<'static> {
    let text = cells([
        "NODE / RANK",
        "STATE",
        "STEP",
        "OUTPUT",
        "CPU",
        "MEMORY",
        "PID",
    ]);
    Line::from(text).style(Style::new().fg(Color::DarkGray))
}

fn cells<T: std::fmt::Display>([name, state, step, output, cpu, memory, pid]: [T; 7]) -> String {
    format!("{name:<22} {state:<12} {step:>8} {output:>8} {cpu:>6} {memory:>8} {pid:>8}")
}

fn drawn(job: &Job, row: &Row, latest: Latest, now: f64) -> Line<'static> {
    let dash = || "-".to_owned();
    match row {
        Row::Rest(nodes, ranks) => {
            let (nodes, ranks) = (count(nodes, "other node"), count(ranks, "rank"));
            let text = format!("+ {nodes} with {ranks}, healthy (a shows them)");
            Line::from(text).style(Style::new().fg(Color::Green))
        }
        Row::Node(name) => {
            let Some(agent) = job.agents.get(name) else {
                return Line::default();
            };
            let report = &agent.report;
            let running = report
                .workers
                .iter()
                .filter(|worker| worker.running)
                .count();
            let cpu = report.workers.iter().filter_map(|worker| worker.processor);
            let memory = report.workers.iter().filter_map(|worker| worker.memory);
            let output = report
                .workers
                .iter()
                .filter_map(|worker| worker.output)
                .max();
            let (state, colour) = match agent.health() {
                Health::Failed => ("failed".to_owned(), Color::Red),
                Health::Silent => ("silent".to_owned(), Color::Red),
                Health::Waiting => ("waiting".to_owned(), Color::Yellow),
                _ => (report.state.to_lowercase(), Color::Green),
            };
            let name = job.node_name(agent);
            // The end of a name distinguishes nodes.
            let letters: Vec<char> = name.chars().collect();
            let first = letters.len().saturating_sub(16);
            let node: String = letters[first..].iter().collect();
            let text = cells([
                format!("{node} {running}/{}", report.workers.len()),
                state,
                dash(),
                output.map_or_else(dash, |at| age(now - at as f64)),
                format!("{}%", cpu.sum::<u32>()),
                mebibytes(memory.sum()),
                report.agent_pid.to_string(),
            ]);
            Line::from(text).style(Style::new().fg(colour))
        }
        Row::Rank(name, rank) => {
            let workers = job.agents.get(name).map(|agent| &agent.report.workers);
            let mut workers = workers.into_iter().flatten();
            let Some(worker) = workers.find(|worker| worker.identity.rank.0 == *rank) else {
                return Line::default();
            };
            let (state, colour) = state_of(worker, latest);
            let text = cells([
                format!("  rank {rank}"),
                state,
                worker.step.map_or_else(dash, |step| step.to_string()),
                worker.output.map_or_else(dash, |at| age(now - at as f64)),
                worker.processor.map_or_else(dash, |it| format!("{it}%")),
                worker.memory.map_or_else(dash, mebibytes),
                worker.identity.pid.to_string(),
            ]);
            let split = 22.min(text.len());
            Line::from(vec![
                Span::raw(text[..split].to_owned()),
                Span::styled(text[split..split + 13].to_owned(), Style::new().fg(colour)),
                Span::raw(text[split + 13..].to_owned()),
            ])
        }
    }
}

fn mebibytes(memory: u64) -> String {
    match memory {
        0..10_000 => format!("{memory}M"),
        _ => format!("{:.1}G", memory as f64 / 1024.0),
    }
}

fn footer(view: &View, rows: usize) -> Line<'static> {
    let style = Style::new().fg(Color::DarkGray);
    if view.is_typing {
        return Line::from(format!("filter (node, rank or state): {}_", view.filter));
    }
    let filter = match view.filter.as_str() {
        "" => String::new(),
        filter => format!("[{filter}] "),
    };
    let text = format!(
        "{filter}↑↓ select  enter ranks  l lines  p stack  a all  / filter  s:{}  q quit  {}/{rows}",
        view.sort.name(),
        (view.selected + 1).min(rows),
    );
    Line::from(text).style(style)
}

#[cfg(test)]
pub(super) mod tests {
    use rdzv_agent::launcher::host::HostName;
    use rdzv_agent::observe::{KnownFailure, NodeReport, TimelineSpan};
    use rdzv_core::rank::{LocalRank, Rank};

    use super::*;
    use crate::views::job::Message;

    /// Returns a job of nodes with at most 8 ranks.
    ///
    /// One rank has failed, and one is behind. Of three or more nodes, one waits and one is silent.
    pub(in crate::views) fn simulated(ranks: u32) -> Job {
        let per_node = ranks.min(8).min(ranks / 2);
        let nodes = ranks / per_node;
        let mut job = Job::default();
        for node in 0..nodes {
            let workers = (0..per_node).map(|local| {
                let rank = node * per_node + local;
                let mut worker = WorkerStatus::default();
                worker.identity.rank = Rank(rank);
                worker.identity.local_rank = LocalRank(local);
                worker.identity.pid = 10_000 + rank;
                worker.step = Some(if rank == ranks - 1 { 90 } else { 100 });
                worker.memory = Some(900 + u64::from(rank % 7));
                worker.processor = Some(97);
                worker.output = Some(if rank == ranks - 1 { 950 } else { 995 });
                if rank == ranks / 2 {
                    (worker.running, worker.exit_code) = (false, Some(1));
                }
                worker
            });
            let report = NodeReport {
                run_id: "llama".to_owned(),
                node: HostName::Given(format!("node-{node:03}")),
                agent_pid: 4000 + node,
                state: "HEALTHY".to_owned(),
                round: Some(2),
                group_rank: Some(node),
                group_world_size: Some(nodes),
                world_size: Some(ranks),
                job_restarts: 1,
                max_restarts: 3,
                workers: workers.collect(),
                began: Some(100.0),
                awaiting: (node == nodes - 1 && nodes > 2)
                    .then(|| "[llama] waiting for nodes: 511 of 512; 41 s left".to_owned()),
                failure: (node == nodes / 2).then(|| KnownFailure {
                    host: format!("node-{node:03}"),
                    rank: Some(ranks / 2),
                    cause: "ValueError: loss is NaN".to_owned(),
                    lines: vec!["ValueError: loss is NaN".to_owned()],
                }),
                spans: vec![TimelineSpan {
                    name: "round 2".to_owned(),
                    begin: 100.0,
                    ..TimelineSpan::default()
                }],
                ..NodeReport::default()
            };
            let message = Message {
                from: format!("node-{node:03}/{}", 4000 + node),
                number: 1,
                is_whole: true,
                change: Some(serde_json::to_value(report).unwrap()),
                is_silent: Some(nodes > 2 && node == 1),
                ..Message::default()
            };
            assert!(job.take(message));
        }
        job
    }

    pub(in crate::views) fn text(job: &Job, view: &View, width: u16, height: u16) -> String {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(job, view, 1000.0, area, &mut buffer);
        let lines = buffer.content.chunks(usize::from(width));
        let lines = lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>());
        let lines: Vec<String> = lines
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect();
        lines.concat()
    }

    #[test]
    fn failed_and_awaited_ranks_are_on_the_first_screen_of_any_size() {
        for (width, height) in [(80, 24), (200, 50)] {
            for ranks in [4, 64, 4096] {
                let screen = text(&simulated(ranks), &View::default(), width, height);
                let failed = format!("rank {}", ranks / 2);
                for part in ["first failure: ", "exit 1", &failed, "10 behind", "q quit"] {
                    assert!(
                        screen.contains(part),
                        "{part} of {ranks} is not in\n{screen}"
                    );
                }
                if ranks > 4 {
                    for part in ["41 s left", "silent", "other nodes with", "healthy"] {
                        assert!(
                            screen.contains(part),
                            "{part} of {ranks} is not in\n{screen}"
                        );
                    }
                }
                assert_eq!(screen.lines().count(), usize::from(height));
            }
        }
    }

    #[test]
    fn frames_of_three_jobs() {
        for ranks in [4, 64, 4096] {
            let screen = text(&simulated(ranks), &View::default(), 80, 24);
            insta::assert_snapshot!(format!("frame_of_{ranks}_ranks"), screen);
        }
    }

    #[test]
    fn a_display_of_one_node_of_several_says_so() {
        let mut job = simulated(4);
        for agent in job.agents.values_mut() {
            agent.report.is_alone = true;
        }
        let screen = text(&job, &View::default(), 80, 24);
        let line =
            "\nthis node only: the rendezvous of this job carries no reports of other nodes\n";
        assert!(screen.contains(line), "{screen}");
    }

    #[test]
    fn a_filter_and_an_expanded_node_show_more() {
        let job = simulated(4096);
        let view = View {
            filter: "17".to_owned(),
            ..View::default()
        };
        let rows = view.rows(&job);
        assert!(rows.contains(&Row::Rank("node-002/4002".to_owned(), 17)));
        let is_rest = |row: &Row| matches!(row, Row::Rest(..));
        assert!(
            !rows.iter().any(is_rest),
            "not all others are healthy: {rows:?}"
        );
        let view = View {
            expanded: ["node-003/4003".to_owned()].into(),
            ..View::default()
        };
        assert!(
            view.rows(&job)
                .contains(&Row::Rank("node-003/4003".to_owned(), 31))
        );
        let pane = Some(("rank 31".to_owned(), vec!["last line".to_owned()]));
        let screen = text(&job, &View { pane, ..view }, 80, 24);
        assert!(
            screen.contains("── rank 31 ──") && screen.contains("\nlast line\n"),
            "{screen}"
        );
    }
}
