//! `rdzv top`: a job on the terminal. It only reads.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rdzv_agent::observe::{OutputTail, ShownStack};
use rdzv_core::env::NO_COLOR;

use super::client::{JobArgs, Target, ViewError, ended};
use super::frame::{Row, View, draw};
use super::job::{Job, Message, parse};
use super::ps::now;
use super::stacks::collapsed;
use super::web;

/// Maximum time between two frames, and time between two attempts to attach.
const PERIOD: Duration = Duration::from_secs(1);

/// Show a running job on the terminal: failures and waits first.
///
/// The display attaches to any agent of the job. With c10d on a store of rdzv, it shows all nodes
/// and ranks of the job, otherwise those of this agent. It only reads: it can attach and detach at
/// any time. Keys are on the last line of the screen.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    job: JobArgs,

    /// Serve the page for a browser on loopback instead.
    ///
    /// The first line on stdout is the address. It contains a random key, so other users of this
    /// machine cannot read the page.
    #[arg(long)]
    web: bool,
}

/// Change of the display.
enum Change {
    Message(Message),
    /// The connection ended, for this reason.
    Lost(String),
    /// Text for the lower half.
    Pane(String, Vec<String>),
    Key(KeyEvent),
    /// The size of the terminal has changed.
    Size,
    /// The terminal cannot be read any more.
    Unreadable(io::Error),
}

/// Shows the job until the user ends the display.
pub(crate) fn run(arguments: &TopArgs) -> ExitCode {
    let shown = arguments.job.find().and_then(|target| {
        if arguments.web {
            return web::serve(&target);
        }
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            return Err(ViewError::Selection(
                "stdin and stdout must be a terminal\nhelp: `rdzv ps --json` and `rdzv stacks \
                 --json` need no terminal"
                    .to_owned(),
            ));
        }
        // The first request shows if the agent answers, before the screen changes.
        drop(target.request("/status")?);
        let mut terminal = ratatui::init();
        let result = show(&mut terminal, &target);
        ratatui::restore();
        result.map_err(|error| ViewError::Answer(format!("cannot use the terminal: {error}")))
    });
    ended("top", shown)
}

fn show(terminal: &mut DefaultTerminal, target: &Target) -> io::Result<()> {
    let (sender, changes) = channel();
    follow(target.clone(), sender.clone());
    let mut view = View {
        has_colours: std::env::var_os(NO_COLOR).is_none_or(|value| value.is_empty()),
        ..View::default()
    };
    read_keys(sender.clone());
    let mut job = Job::default();
    loop {
        terminal.draw(|frame| draw(&job, &view, now(), frame.area(), frame.buffer_mut()))?;
        let mut change = changes.recv_timeout(PERIOD);
        while let Ok(next) = change {
            match next {
                Change::Message(message) => {
                    view.lost = None;
                    job.take(message);
                }
                Change::Lost(why) => view.lost = Some(why),
                Change::Pane(title, lines) => view.pane = Some((title, lines)),
                Change::Key(key) if !press(key, &mut view, &job, target, &sender) => return Ok(()),
                Change::Key(_) | Change::Size => {}
                Change::Unreadable(error) => return Err(error),
            }
            change = changes.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
    }
}

/// Reads keys on a separate thread, which ends with the process.
fn read_keys(sender: Sender<Change>) {
    thread::spawn(move || {
        loop {
            let change = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => Change::Key(key),
                Ok(Event::Resize(..)) => Change::Size,
                Ok(_) => continue,
                Err(error) => Change::Unreadable(error),
            };
            let is_last = matches!(change, Change::Unreadable(_));
            if sender.send(change).is_err() || is_last {
                return;
            }
        }
    });
}

/// Follows the messages of a job, and attaches again after a lost connection.
fn follow(target: Target, sender: Sender<Change>) {
    thread::spawn(move || {
        loop {
            let followed = target.follow(|message| sender.send(Change::Message(message)).is_ok());
            let why = match followed {
                Ok(()) => "the agent closed the connection".to_owned(),
                Err(error) => error.to_string(),
            };
            if sender.send(Change::Lost(why)).is_err() {
                return;
            }
            thread::sleep(PERIOD);
        }
    });
}

/// Handles a key; `false` ends the display.
fn press(
    key: KeyEvent,
    view: &mut View,
    job: &Job,
    target: &Target,
    sender: &Sender<Change>,
) -> bool {
    if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
        return false;
    }
    if view.is_typing {
        match key.code {
            KeyCode::Char(letter) => view.filter.push(letter),
            KeyCode::Backspace => drop(view.filter.pop()),
            KeyCode::Esc => (view.is_typing, view.filter) = (false, String::new()),
            KeyCode::Enter => view.is_typing = false,
            _ => {}
        }
        view.selected = 0;
        return true;
    }
    let rows = view.rows(job);
    let last = rows.len().saturating_sub(1);
    match key.code {
        KeyCode::Char('q') => return false,
        KeyCode::Esc if view.pane.is_some() => view.pane = None,
        KeyCode::Esc => view.filter.clear(),
        KeyCode::Up | KeyCode::Char('k') => view.selected = view.selected.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => view.selected = (view.selected + 1).min(last),
        KeyCode::PageUp => view.selected = view.selected.saturating_sub(20),
        KeyCode::PageDown => view.selected = (view.selected + 20).min(last),
        KeyCode::Home => view.selected = 0,
        KeyCode::End => view.selected = last,
        KeyCode::Char('a') => view.is_expanded = !view.is_expanded,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Char('/') => (view.is_typing, view.filter) = (true, String::new()),
        KeyCode::Enter => match rows.get(view.selected) {
            Some(Row::Node(name)) if !view.expanded.remove(name) => {
                view.expanded.insert(name.clone());
            }
            Some(Row::Rest(..)) => view.is_expanded = true,
            Some(Row::Rank(_, rank)) => inspect(target, sender, Some(*rank), false),
            _ => {}
        },
        KeyCode::Char(letter @ ('l' | 'p')) => {
            let rank = match rows.get(view.selected) {
                Some(Row::Rank(_, rank)) => Some(*rank),
                _ => job.failure().and_then(|failure| failure.rank),
            };
            inspect(target, sender, rank, letter == 'p');
        }
        _ => {}
    }
    view.selected = view.selected.min(view.rows(job).len().saturating_sub(1));
    true
}

/// Requests the last lines or the stack of a rank on a separate thread.
fn inspect(target: &Target, sender: &Sender<Change>, rank: Option<u32>, is_stack: bool) {
    let (target, sender) = (target.clone(), sender.clone());
    thread::spawn(move || {
        let (title, text) = if is_stack {
            let query = rank.map_or_else(String::new, |rank| format!("?rank={rank}"));
            let who = rank.map_or("all ranks".to_owned(), |rank| format!("rank {rank}"));
            let stacks = target.get(&format!("/stacks{query}")).map(|text| {
                let stacks: Vec<ShownStack> = parse(text.as_bytes()).unwrap_or_default();
                collapsed(&stacks)
            });
            (format!("stack of {who}"), stacks)
        } else {
            let rank = rank.unwrap_or(0);
            let lines = [0, 1].map(|stderr| {
                let path = format!("/output?rank={rank}&lines=20&stderr={stderr}");
                let text = target.get(&path)?;
                let tail: OutputTail = parse(text.as_bytes()).unwrap_or_default();
                Ok(tail.error.unwrap_or(tail.text))
            });
            let [stdout, stderr] = lines;
            let text = stdout.and_then(|out| Ok::<_, ViewError>(out + &stderr?));
            (format!("last lines of rank {rank}"), text)
        };
        let text = text.unwrap_or_else(|error| error.to_string());
        let lines = text.lines().map(str::to_owned).collect();
        let _ = sender.send(Change::Pane(title, lines));
    });
}
