//! Log lines on stderr, as plain sentences or in the form of torchelastic:
//!
//! ```text
//! W1121 00:25:04.393117 21914 agent/stop.rs:88] Sending process 21920 closing signal SIGTERM
//! │└ month, day           │    └ where from
//! └ level                 └ process id          repeated on every line of a message
//! ```

use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use jiff::Zoned;
use rdzv_agent::event::TORCHELASTIC;
use rdzv_console::line::{headed, said};
use rdzv_console::{Line, LineRole};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use rdzv_core::env::LOGLEVEL;
use rdzv_core::reminder;

use super::{status_row, without_name};
use crate::exit::Raised;
use crate::face::Face;
use crate::terminal::{Form, LineWriter};

/// Parses `LOGLEVEL`; the default is WARNING.
///
/// The names are those of Python's levels, in capitals. CRITICAL shows nothing, because no message
/// has that level.
pub(crate) fn level(text: Option<&str>) -> Result<LevelFilter, Raised> {
    Ok(match text {
        None | Some("WARNING" | "WARN" | "NOTSET") => LevelFilter::WARN,
        Some("CRITICAL" | "FATAL") => LevelFilter::OFF,
        Some("ERROR") => LevelFilter::ERROR,
        Some("INFO") => LevelFilter::INFO,
        Some("DEBUG") => LevelFilter::DEBUG,
        Some(other) => {
            let raised = Raised::value_error(format!("Unknown level: '{other}'"));
            return Err(raised.plainly(format!(
                "{LOGLEVEL} is '{other}', but must be CRITICAL, ERROR, WARNING, INFO or DEBUG"
            )));
        }
    })
}

/// Sends log lines of this level and above to stderr.
///
/// Only the first call in a process has an effect. In rdzv's style, warnings and errors are
/// sentences, without messages in torchelastic's texts, because rdzv's own events report the same.
/// At INFO and DEBUG, and in torchrun's style, all lines have the form with time and location.
pub(crate) fn install(level: LevelFilter, face: Face) {
    if face == Face::Rdzv && level <= LevelFilter::WARN {
        // Reminders update the status row, so they are needed even if they are not printed.
        let waits = match level {
            LevelFilter::WARN => LevelFilter::DEBUG,
            level => level,
        };
        let shown = Targets::new()
            .with_default(level)
            .with_target(reminder::TARGET, waits);
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(|| LineWriter)
            .event_format(LogForm::Plain)
            .with_filter(shown);
        let subscriber = tracing_subscriber::registry().with(layer);
        let _ = tracing::subscriber::set_global_default(subscriber);
        return;
    }
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| LineWriter)
        .event_format(LogForm::Torchelastic)
        .finish();
    // Fails only if another subscriber is installed; then that one gets the lines.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Variable from which the number of nodes comes, if it does.
static NODES_FROM: OnceLock<String> = OnceLock::new();

/// Names this variable as the reason of each wait for nodes.
pub(crate) fn nodes_are_from(variable: &str) {
    let _ = NODES_FROM.set(variable.to_owned());
}

enum LogForm {
    /// `rdzv: waiting for nodes: 2 of 4 ...`
    Plain,
    /// `W1121 00:25:04.393117 21914 agent/stop.rs:88] ...`
    Torchelastic,
}

impl<S, N> FormatEvent<S, N> for LogForm
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = Text::default();
        event.record(&mut text);
        match self {
            Self::Plain => write_plain(writer, event.metadata(), &text),
            Self::Torchelastic => write_torchelastic(writer, event.metadata(), &text),
        }
    }
}

fn write_plain(mut writer: Writer<'_>, metadata: &Metadata<'_>, text: &Text) -> fmt::Result {
    if metadata.target() == TORCHELASTIC {
        return Ok(());
    }
    let role = match *metadata.level() {
        Level::ERROR => LineRole::Error,
        _ => LineRole::Warning,
    };
    // A reminder appears in the status row, if there is one.
    if metadata.target() == reminder::TARGET {
        let is_shown = status_row::awaited(&text.0, text.1);
        if is_shown || *metadata.level() > Level::WARN {
            return Ok(());
        }
    }
    let form = Form::of_stderr();
    let mut text = text.0.clone();
    if let Some(variable) = NODES_FROM.get()
        && without_name(&text).starts_with("waiting for nodes: ")
    {
        text += &format!(
            "; these nodes come from {variable}: if it is left over from another job, unset it or \
             add --standalone"
        );
    }
    for line in plain_lines(role, &text, form.width) {
        writeln!(writer, "{}", line.painted(form.is_coloured))?;
    }
    Ok(())
}

/// Returns the lines of a message without the run's name and rows of stars.
///
/// Many messages of a run begin with the name of the role or run.
fn plain_lines(role: LineRole, text: &str, width: Option<usize>) -> Vec<Line> {
    let lines = without_name(text).lines();
    let lines = lines.filter(|line| !line.trim_matches('*').is_empty());
    let mut shown = Vec::new();
    for line in lines {
        shown.extend(if shown.is_empty() {
            said(role, line, width)
        } else {
            headed(LineRole::Plain, INDENT, line, width)
        });
    }
    shown
}

/// Indentation of the second and later lines of a message.
const INDENT: &str = "      ";

fn write_torchelastic(mut writer: Writer<'_>, metadata: &Metadata<'_>, text: &Text) -> fmt::Result {
    let prefix = format!(
        "{}{} {} {}:{}] ",
        letter(*metadata.level()),
        Zoned::now().strftime("%m%d %H:%M:%S%.6f"),
        std::process::id(),
        source_path(metadata.file().unwrap_or_default()),
        metadata.line().unwrap_or_default(),
    );
    for line in text.0.split('\n') {
        writeln!(writer, "{prefix}{line}")?;
    }
    Ok(())
}

fn letter(level: Level) -> char {
    match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO => 'I',
        _ => 'D',
    }
}

/// Shortens `crates/launch/agent/src/stop.rs` to `agent/stop.rs`.
///
/// The result does not depend on the directory in which rdzv was built.
fn source_path(file: &str) -> String {
    let Some((folder, rest)) = file.split_once("/src/") else {
        return file.to_owned();
    };
    let mut folders = folder.rsplit('/');
    let (own, slice) = (folders.next(), folders.next());
    // The crates of a slice are in folders named `driver` and `proto`.
    let name = match (own, slice) {
        (Some("driver"), Some(slice)) => slice.to_owned(),
        (Some("proto"), Some(slice)) => format!("{slice}-proto"),
        (own, _) => own.unwrap_or_default().to_owned(),
    };
    format!("{name}/{rest}")
}

/// Message of an event with its other fields, and the remaining time of a wait.
#[derive(Default)]
struct Text(String, Option<Duration>);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = if field.name() == "message" {
            let fields = std::mem::take(&mut self.0);
            write!(self.0, "{value:?}{fields}")
        } else {
            write!(self.0, " {}={value:?}", field.name())
        };
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "left" => self.1 = Some(Duration::from_secs(value)),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_pythons_in_capitals() {
        assert_eq!(level(None), Ok(LevelFilter::WARN));
        assert_eq!(level(Some("INFO")), Ok(LevelFilter::INFO));
        for bad in ["info", "10", ""] {
            let error = level(Some(bad)).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("ValueError: Unknown level: '{bad}'")
            );
        }
    }

    #[test]
    fn a_message_of_a_run_is_a_sentence() {
        let text = |message: &str| {
            let lines = plain_lines(LineRole::Warning, message, None);
            lines.iter().map(Line::text).collect::<Vec<_>>()
        };
        assert_eq!(text("[job] waiting: 1 of 2"), ["rdzv: waiting: 1 of 2"]);
        assert_eq!(text("\n***\nSetting x.\n***"), ["rdzv: Setting x."]);
        assert_eq!(text("hang:\n  rank 0"), ["rdzv: hang:", "        rank 0"]);
    }

    #[test]
    fn locations_do_not_show_where_the_program_was_built() {
        assert_eq!(
            source_path("/somewhere/else/crates/launch/agent/src/stop.rs"),
            "agent/stop.rs"
        );
        assert_eq!(
            source_path("crates/launch/cli/src/observe/log.rs"),
            "cli/observe/log.rs"
        );
        assert_eq!(
            source_path("crates/store/driver/src/tcp.rs"),
            "store/tcp.rs"
        );
    }
}
