//! Log lines on stderr in the form of torchelastic:
//!
//! ```text
//! W1121 00:25:04.393117 21914 agent/stop.rs:88] Sending process 21920 closing signal SIGTERM
//! │└ month, day           │    └ where from
//! └ level                 └ process id          repeated on every line of a message
//! ```

use std::fmt::{self, Write};

use jiff::Zoned;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::exit::Raised;
use crate::terminal::LineWriter;

/// Reads `LOGLEVEL`; not set, it is WARNING.
///
/// Names are those of Python's levels, in capitals. CRITICAL shows nothing, since nothing is logged
/// at that level.
pub(crate) fn level(text: Option<&str>) -> Result<LevelFilter, Raised> {
    Ok(match text {
        None | Some("WARNING" | "WARN" | "NOTSET") => LevelFilter::WARN,
        Some("CRITICAL" | "FATAL") => LevelFilter::OFF,
        Some("ERROR") => LevelFilter::ERROR,
        Some("INFO") => LevelFilter::INFO,
        Some("DEBUG") => LevelFilter::DEBUG,
        Some(other) => {
            return Err(Raised::value_error(format!("Unknown level: '{other}'")));
        }
    })
}

/// Sends log lines of this level and above to stderr. To be called once, by the program.
pub(crate) fn install(level: LevelFilter) {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(|| LineWriter)
        .event_format(TorchelasticForm)
        .finish();
    // Fails only if there is one already, and then lines go there.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct TorchelasticForm;

impl<S, N> FormatEvent<S, N> for TorchelasticForm
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
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
}

fn letter(level: Level) -> char {
    match level {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO => 'I',
        _ => 'D',
    }
}

/// `crates/agent/src/stop.rs` as `agent/stop.rs`, wherever it was built.
fn source_path(file: &str) -> String {
    let inside = file.rsplit_once("crates/").map_or(file, |(_, rest)| rest);
    inside.replacen("/src/", "/", 1)
}

/// The message of an event, and its other fields behind it.
#[derive(Default)]
struct Text(String);

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
    fn places_do_not_tell_where_the_program_was_built() {
        assert_eq!(
            source_path("/somewhere/else/crates/agent/src/stop.rs"),
            "agent/stop.rs"
        );
        assert_eq!(
            source_path("crates/cli/src/observe/log.rs"),
            "cli/observe/log.rs"
        );
    }
}
