//! Conversion of `torchrun` command lines into the form that clap expects.
//!
//! `torchrun` uses Python's argparse, and users' job scripts rely on its rules:
//!
//! * A prefix of an option is enough if it is unambiguous. Both spellings of an option
//!   (`--nproc-per-node`, `--nproc_per_node`) count, so `--nproc` is ambiguous. An option that only
//!   rdzv has is listed under a heading in the help (except `--collapse`). It never makes a prefix
//!   of a `torchrun` option ambiguous.
//! * `-`, a negative number and an unknown option with a space are values. Any other argument with
//!   a leading dash is an option.
//! * The first argument that is neither an option nor the value of one is the script. All arguments
//!   after it belong to the script.
//! * The first `--` is dropped if it is before the script or directly after it. Every other `--` is
//!   an argument of the script.
//! * Environment variables (`PET_*`) set defaults. A switch is a number there: 0 or 1.
//!
//! [`normalise`] rewrites such a line for clap: full names, values attached with `=`, and a `--`
//! before the script. The options come from clap's own table, so no second list exists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction, Command};

use crate::exit::Refusal;
use crate::number::int_or_raise;
use crate::suggestion::did_you_mean;

/// Options without a `PET_*` variable.
///
/// `torchrun` does not read these from the environment, or they exist only in rdzv.
const WITHOUT_VARIABLE: [&str; 9] = [
    "logs_specs",
    "numa_binding",
    "print_completion",
    "use_env",
    "explain",
    // Their variables are RDZV_SCHEDULER and RDZV_COMPAT_OUTPUT.
    "scheduler",
    "compat_output",
    "help",
    "training_script",
];

/// Options that act immediately: the rest of the line is not checked.
const IMMEDIATE: [&str; 2] = ["help", "print_completion"];

/// Returns the variable that sets the default of an option, if it has one.
pub(crate) fn variable(option: &Arg) -> Option<String> {
    let id = option.get_id().as_str();
    (!WITHOUT_VARIABLE.contains(&id)).then(|| format!("PET_{}", id.to_uppercase()))
}

/// Returns a warning for each `PET_*` variable that no option reads.
pub(crate) fn unknown_variables(
    command: &Command,
    environment: &BTreeMap<OsString, OsString>,
) -> Vec<String> {
    let known: Vec<String> = command.get_arguments().filter_map(variable).collect();
    let names = environment.keys().filter_map(|name| name.to_str());
    names
        .filter(|name| name.starts_with("PET_") && !known.iter().any(|known| known == name))
        .map(|name| {
            let meant = did_you_mean(name, known.iter().map(String::as_str));
            format!("the variable {name} has no effect, because no flag reads it{meant}")
        })
        .collect()
}

/// A command line that clap parses as `torchrun` parses the original.
#[derive(Debug, PartialEq, Eq, Default)]
pub(crate) struct Normalised {
    /// Options with full names and attached values, then `--` and the script.
    ///
    /// The arguments of the script follow it.
    pub(crate) line: Vec<OsString>,
    /// Unknown options, as typed.
    pub(crate) unknown: Vec<String>,
    /// Options that the environment set: the variable by the option's id.
    pub(crate) from_environment: BTreeMap<String, String>,
    /// Switch directly before the script, if any.
    pub(crate) switch_before: Option<String>,
    /// Origin of `--rdzv-conf` options that flags and a variable set together.
    pub(crate) merged: Option<String>,
}

/// Rewrites a command line, which must not contain the program's name.
///
/// # Errors
///
/// Returns [`Refusal::Raised`] for a switch with a bad number in the environment, as `torchrun`
/// does. This error comes first, even if the line has other mistakes. Usage errors have the texts
/// of `torchrun`.
pub(crate) fn normalise(
    command: &Command,
    line: &[OsString],
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Normalised, Refusal> {
    let options: Vec<Known<'_>> = command.get_arguments().filter_map(Known::new).collect();
    let defaults = defaults(&options, environment)?;
    let mut typed = BTreeSet::new();
    let mut result = Normalised::default();
    let mut words: VecDeque<OsString> = line.iter().cloned().collect();
    let mut script = Vec::new();
    while let Some(word) = words.pop_front() {
        if word == "--" {
            script = words.into();
            break;
        }
        let (option, full) = match classify(&options, &word)? {
            Word::Positional => {
                if words.front().is_some_and(|word| word == "--") {
                    words.pop_front();
                }
                let before = result.line.last();
                let before = before.map(|word| word.to_string_lossy().into_owned());
                result.switch_before = before.filter(|word| !word.contains('='));
                words.push_front(word);
                script = words.into();
                break;
            }
            Word::Unknown => {
                result.unknown.push(word.to_string_lossy().into_owned());
                continue;
            }
            Word::Switch(option, next) => {
                if let Some(next) = next {
                    words.push_front(next);
                }
                (option, option.name().into())
            }
            Word::Valued(option, Some(value)) => (option, option.assign(&value)),
            Word::Valued(option, None) => match words.pop_front() {
                Some(next) if next != "--" && is_value(&options, &next)? => {
                    (option, option.assign(&next))
                }
                _ => return Err(option.unfed()),
            },
        };
        result.line.push(full);
        typed.insert(option.id());
        if IMMEDIATE.contains(&option.id()) {
            result.unknown.clear();
            return Ok(result);
        }
    }
    for (id, variable, word) in defaults {
        if !typed.contains(id) {
            result.from_environment.insert(id.to_owned(), variable);
            result.line.push(word);
        }
    }
    if !script.is_empty() {
        result.line.push("--".into());
        result.line.extend(script);
    }
    Ok(result)
}

/// Returns the name of an option in usage errors: all its spellings.
pub(crate) fn display(option: &Arg) -> String {
    let short = option.get_short().map(|letter| format!("-{letter}"));
    let long = option.get_long().map(|name| format!("--{name}"));
    let aliases = option.get_all_aliases().unwrap_or_default();
    short
        .into_iter()
        .chain(long)
        .chain(aliases.into_iter().map(|name| format!("--{name}")))
        .collect::<Vec<_>>()
        .join("/")
}

struct Known<'a> {
    arg: &'a Arg,
    /// Spellings with their dashes, in the order in which messages list them.
    spellings: Vec<String>,
}

impl<'a> Known<'a> {
    fn new(arg: &'a Arg) -> Option<Self> {
        (!arg.is_positional()).then(|| Self {
            arg,
            spellings: display(arg).split('/').map(str::to_owned).collect(),
        })
    }

    /// `true` if the option needs a value, which is attached or the next word.
    ///
    /// An option with an optional value takes only an attached value (`--explain=json`).
    fn takes_value(&self) -> bool {
        self.has_value()
            && self
                .arg
                .get_num_args()
                .is_none_or(|number| number.min_values() > 0)
    }

    fn has_value(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Set | ArgAction::Append)
    }

    /// `true` for an option that `torchrun` does not have.
    ///
    /// Only such options, except `--collapse`, have a heading in the help.
    fn is_ours(&self) -> bool {
        self.arg.get_help_heading().is_some()
    }

    fn id(&self) -> &'a str {
        self.arg.get_id().as_str()
    }

    fn name(&self) -> String {
        let name = self.arg.get_long().expect("every option has a long name");
        format!("--{name}")
    }

    fn assign(&self, value: &OsStr) -> OsString {
        let mut word = OsString::from(self.name());
        word.push("=");
        word.push(value);
        word
    }

    fn misused(&self, problem: &str) -> Refusal {
        let value = problem.rsplit_once(' ').map_or("", |(_, value)| value);
        let plain = format!(" takes no value, but {value} was specified");
        Refusal::parser(&display(self.arg), problem, &plain)
    }

    fn unfed(&self) -> Refusal {
        let flag = display(self.arg);
        Refusal::parser(&flag, "expected one argument", " needs a value")
    }

    fn overfed(&self, value: &OsStr) -> Refusal {
        let value = value.to_string_lossy();
        self.misused(&format!("ignored explicit argument '{value}'"))
    }
}

enum Word<'k, 'a> {
    Positional,
    Unknown,
    /// A switch, and the rest of a combined word: `-r3` for `-mr3`.
    Switch(&'k Known<'a>, Option<OsString>),
    /// An option that takes a value, and the value if it is attached.
    Valued(&'k Known<'a>, Option<OsString>),
}

fn classify<'k, 'a>(options: &'k [Known<'a>], word: &OsStr) -> Result<Word<'k, 'a>, Refusal> {
    let bytes = word.as_bytes();
    if bytes.len() < 2 || bytes[0] != b'-' {
        return Ok(Word::Positional);
    }
    let text = word.to_string_lossy();
    let named = |name: &str| {
        options
            .iter()
            .find(|option| option.spellings.iter().any(|spelling| spelling == name))
    };
    let mut parts = bytes.splitn(2, |byte| *byte == b'=');
    let name = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let attached = parts.next().map(|value| OsString::from_vec(value.to_vec()));
    let name = &*name;
    let mut found = named(name);
    if found.is_none() && name.starts_with("--") {
        let mut matches: Vec<(&Known<'_>, &str)> = Vec::new();
        for option in options {
            for spelling in &option.spellings {
                if spelling.starts_with(name) {
                    matches.push((option, spelling));
                }
            }
        }
        if matches.iter().any(|(option, _)| !option.is_ours()) {
            matches.retain(|(option, _)| !option.is_ours());
        }
        if matches.len() > 1 {
            let names: Vec<&str> = matches.iter().map(|(_, spelling)| *spelling).collect();
            let names = names.join(", ");
            let mut options: Vec<String> =
                matches.iter().map(|(option, _)| option.name()).collect();
            options.dedup();
            let options = options.join(" or ");
            return Err(Refusal::Parser {
                torchrun: format!("ambiguous option: {text} could match {names}"),
                plain: format!("{name} could mean {options}; write the whole name"),
            });
        }
        found = matches.first().map(|(option, _)| *option);
    }
    if let Some(option) = found {
        return match (option.takes_value(), attached) {
            (true, attached) => Ok(Word::Valued(option, attached)),
            (false, None) => Ok(Word::Switch(option, None)),
            (false, attached) if option.has_value() => Ok(Word::Valued(option, attached)),
            (false, Some(value)) => Err(option.overfed(&value)),
        };
    }
    if !name.starts_with("--") {
        let letter: String = text.chars().take(2).collect();
        if let Some(option) = named(&letter) {
            let more = OsStr::from_bytes(&bytes[letter.len()..]);
            return Ok(if option.takes_value() {
                Word::Valued(option, Some(more.to_owned()))
            } else if named(&format!("-{}", first_letter(more))).is_some() {
                let mut next = OsString::from("-");
                next.push(more);
                Word::Switch(option, Some(next))
            } else {
                return Err(option.overfed(more));
            });
        }
    }
    // This check comes last, as in `torchrun`, so that it cannot hide an option.
    Ok(if is_negative_number(&text) || text.contains(' ') {
        Word::Positional
    } else {
        Word::Unknown
    })
}

fn is_value(options: &[Known<'_>], word: &OsStr) -> Result<bool, Refusal> {
    Ok(matches!(classify(options, word)?, Word::Positional))
}

fn first_letter(text: &OsStr) -> char {
    text.to_string_lossy().chars().next().unwrap_or(' ')
}

fn is_negative_number(text: &str) -> bool {
    let Some(digits) = text.strip_prefix('-') else {
        return false;
    };
    let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    match digits.split_once('.') {
        Some((whole, fraction)) => {
            all_digits(whole) && all_digits(fraction) && !fraction.is_empty()
        }
        None => all_digits(digits) && !digits.is_empty(),
    }
}

/// Reads the defaults from the environment.
///
/// Each default has the id of the option, its variable, and the argument for the line.
fn defaults<'a>(
    options: &[Known<'a>],
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Vec<(&'a str, String, OsString)>, Refusal> {
    let mut words = Vec::new();
    for option in options {
        let Some(variable) = variable(option.arg) else {
            continue;
        };
        let Some(value) = environment.get(OsStr::new(&variable)) else {
            continue;
        };
        let id = option.id();
        if !option.takes_value() {
            let text = value.to_string_lossy();
            let number = int_or_raise(&text).map_err(|raised| {
                raised.plainly(format!("{variable} is '{text}', but must be 0 or 1"))
            });
            if number? != 0 {
                words.push((id, variable, option.name().into()));
            }
        } else if option.is_ours() || option.arg.get_possible_values().is_empty() {
            words.push((id, variable, option.assign(value)));
        }
        // `torchrun` accepts any text from the environment for `--start-method`. The option has
        // no effect in rdzv, so its variable is ignored.
    }
    Ok(words)
}

#[cfg(test)]
mod tests;
