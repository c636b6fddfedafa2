//! Every flag with its value and where that comes from, for whoever explains a launch.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args};

use super::conventions::{normalise, variable};
use super::parse::{command, usage_error};
use crate::exit::Refusal;

/// Flags that are no settings of a run: they ask for something else.
const QUESTIONS: [&str; 3] = ["help", "print_completion", "explain"];

/// Who gave a flag its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    /// The command line.
    Typed,
    /// This variable.
    ByVariable(String),
    /// Nobody.
    Default,
}

/// A flag and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The name of its field, `nproc_per_node`.
    pub(crate) id: String,
    /// Its name on the command line, `--nproc-per-node`.
    pub(crate) flag: String,
    /// As given, or the default; none if there is no default. `yes` or `no` for a switch.
    pub(crate) value: Option<String>,
    /// Who gave it.
    pub(crate) given: Given,
}

/// The flags of a line that [`parse`](super::parse()) accepts, in the order of the help.
pub(crate) fn settings<T: Args>(
    program: &str,
    line: &[OsString],
    environment: &BTreeMap<OsString, OsString>,
) -> Result<Vec<Setting>, Refusal> {
    let command = command::<T>(program);
    let normalised = normalise(&command, line, environment)?;
    let words = std::iter::once(OsString::from(program)).chain(normalised.line);
    let matches = command.clone().try_get_matches_from(words);
    let matches = matches.map_err(|error| usage_error(&command, &error))?;
    let setting = |option: &Arg| {
        let id = option.get_id().as_str();
        let name = option.get_long()?;
        if QUESTIONS.contains(&id) {
            return None;
        }
        let given = match (matches.value_source(id), variable(option)) {
            (Some(ValueSource::CommandLine), Some(variable))
                if normalised.from_environment.contains(id) =>
            {
                Given::ByVariable(variable)
            }
            (Some(ValueSource::CommandLine), _) => Given::Typed,
            _ => Given::Default,
        };
        Some(Setting {
            id: id.to_owned(),
            flag: format!("--{name}"),
            value: value(option, &matches),
            given,
        })
    };
    Ok(command.get_arguments().filter_map(setting).collect())
}

fn value(option: &Arg, matches: &ArgMatches) -> Option<String> {
    let id = option.get_id().as_str();
    if matches!(option.get_action(), ArgAction::SetTrue) {
        let word = if matches.get_flag(id) { "yes" } else { "no" };
        return Some(word.to_owned());
    }
    let last = matches.get_raw(id)?.next_back()?;
    Some(last.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::RunArgs;

    fn found(line: &[&str], variables: &[(&str, &str)], id: &str) -> (Option<String>, Given) {
        let line: Vec<OsString> = line.iter().map(OsString::from).collect();
        let environment = variables.iter();
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        let settings = settings::<RunArgs>("torchrun", &line, &environment.collect()).unwrap();
        let setting = settings.into_iter().find(|setting| setting.id == id);
        let setting = setting.unwrap();
        (setting.value, setting.given)
    }

    #[test]
    fn a_value_is_typed_or_a_variables_or_a_default() {
        let some = |text: &str| Some(text.to_owned());
        let variables = [("PET_NNODES", "3"), ("PET_NO_PYTHON", "1")];
        let by = |name: &str| Given::ByVariable(name.to_owned());
        assert_eq!(
            found(&["--nnodes", "2", "s"], &variables, "nnodes"),
            (some("2"), Given::Typed)
        );
        assert_eq!(
            found(&["s", "--nnodes", "2"], &variables, "nnodes"),
            (some("3"), by("PET_NNODES"))
        );
        assert_eq!(
            found(&["s"], &variables, "no_python"),
            (some("yes"), by("PET_NO_PYTHON"))
        );
        assert_eq!(
            found(&["-m", "s"], &[], "module"),
            (some("yes"), Given::Typed)
        );
        assert_eq!(found(&["s"], &[], "nnodes"), (some("1:1"), Given::Default));
        assert_eq!(found(&["s"], &[], "master_port"), (None, Given::Default));
    }
}
