//! Flags that are given twice, or contradict an inherited variable.
//!
//! Only `rdzv run` resolves them. With the other launchers, the last value of a flag counts, and a
//! flag overrides its variable, without a warning.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::conventions::Normalised;

/// Flag whose values are merged.
const MERGED: &str = "rdzv-conf";

/// Variable of [`MERGED`].
const MERGED_VARIABLE: &str = "PET_RDZV_CONF";

/// Merges or drops contradicting arguments, and returns warnings.
pub(super) fn settle(
    line: &mut Normalised,
    environment: &BTreeMap<OsString, OsString>,
) -> Vec<String> {
    let end = line.line.iter().position(|word| word == "--");
    let script = line.line.split_off(end.unwrap_or(line.line.len()));
    let mut warnings = Vec::new();
    let mut values: Vec<(String, Vec<String>)> = Vec::new();
    for word in &line.line {
        let word = word.to_string_lossy();
        let Some((name, value)) = word.split_once('=') else {
            continue;
        };
        match values.iter_mut().find(|(known, _)| known == name) {
            Some((_, values)) => values.push(value.to_owned()),
            None => values.push((name.to_owned(), vec![value.to_owned()])),
        }
    }
    for (name, mut values) in values {
        let id = name.trim_start_matches('-').replace('-', "_");
        let is_inherited = line.from_environment.contains_key(&id);
        if name == format!("--{MERGED}") {
            let variable = environment.get(OsStr::new(MERGED_VARIABLE));
            let variable = variable.filter(|value| !is_inherited && !value.is_empty());
            if let Some(variable) = variable {
                let variable = variable.to_string_lossy().into_owned();
                line.merged = Some(only_in(&variable, &values));
                values.insert(0, variable);
            }
            values.retain(|value| !value.trim().is_empty());
            let is_it = |word: &OsString| word.to_string_lossy().starts_with(&format!("{name}="));
            line.line.retain(|word| !is_it(word));
            line.line
                .push(format!("{name}={}", values.join(",")).into());
        } else if let [others @ .., last] = &values[..]
            && others.iter().any(|other| other != last)
        {
            warnings.push(format!(
                "{name} is specified {} times ({}): the last value applies",
                values.len(),
                values.join(", ")
            ));
        }
    }
    warnings.extend(standalone(line));
    line.line.extend(script);
    warnings
}

/// Describes the options of a variable that the command line does not override.
fn only_in(variable: &str, typed: &[String]) -> String {
    fn key(option: &str) -> &str {
        option.split('=').next().unwrap_or_default().trim()
    }
    let typed: Vec<&str> = typed
        .iter()
        .flat_map(|text| text.split(','))
        .map(key)
        .collect();
    let only = variable
        .split(',')
        .filter(|option| !typed.contains(&key(option)));
    let only: Vec<&str> = only.map(str::trim).collect();
    if only.is_empty() {
        return format!("instead of those of {MERGED_VARIABLE}");
    }
    format!("{} from {MERGED_VARIABLE}", only.join(", "))
}

/// Resolves `--standalone` with several nodes.
/// A typed flag overrides an inherited one.
fn standalone(line: &mut Normalised) -> Option<String> {
    let flag = "--standalone";
    let is_nodes = |word: &OsString| word.to_string_lossy().starts_with("--nnodes=");
    let nodes = line.line.iter().rfind(|word| is_nodes(word))?;
    let nodes = nodes
        .to_string_lossy()
        .trim_start_matches("--nnodes=")
        .to_owned();
    let is_one = ["1", "1:1"].contains(&nodes.as_str());
    if is_one || !line.line.iter().any(|word| word == flag) {
        return None;
    }
    let inherits = |id: &str| line.from_environment.contains_key(id);
    match (inherits("standalone"), inherits("nnodes")) {
        (false, true) => {
            line.line.retain(|word| !is_nodes(word));
            let variable = line.from_environment.remove("nnodes")?;
            Some(format!(
                "--standalone starts a job with one node, although {variable} is {nodes}"
            ))
        }
        (true, false) => {
            line.line.retain(|word| word != flag);
            let variable = line.from_environment.remove("standalone")?;
            Some(format!(
                "--nnodes {nodes} starts a job with several nodes, although {variable} is set"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Launcher;
    use super::super::conventions::normalise;
    use super::super::parse::command;
    use super::*;

    fn settled(line: &[&str], variables: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let words: Vec<OsString> = line.iter().map(OsString::from).collect();
        let environment = variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()));
        let environment = environment.collect();
        let mut line = normalise(&command(Launcher::Run), &words, &environment).unwrap();
        let warnings = settle(&mut line, &environment);
        let text = |word: OsString| word.into_string().unwrap();
        (line.line.into_iter().map(text).collect(), warnings)
    }

    #[test]
    fn settings_are_merged_and_the_later_key_wins() {
        let twice = &["--rdzv-conf", "a=1", "--rdzv-conf", "b=2", "s"];
        assert_eq!(settled(twice, &[]).0, ["--rdzv-conf=a=1,b=2", "--", "s"]);
        let (line, warnings) = settled(twice, &[("PET_RDZV_CONF", "c=3")]);
        assert_eq!(line, ["--rdzv-conf=c=3,a=1,b=2", "--", "s"]);
        assert!(warnings.is_empty());
        assert_eq!(
            only_in("a=1, c=2", &["a=3,b=1".to_owned()]),
            "c=2 from PET_RDZV_CONF"
        );
    }

    #[test]
    fn a_repeated_flag_is_named_with_its_values() {
        let line = &[
            "--role",
            "a",
            "--standalone",
            "--standalone",
            "--role",
            "b",
            "s",
        ];
        let warnings = settled(line, &[]).1;
        assert_eq!(
            warnings,
            ["--role is specified 2 times (a, b): the last value applies"]
        );
        assert!(
            settled(&["--role", "a", "--role", "a", "s"], &[])
                .1
                .is_empty()
        );
    }

    #[test]
    fn the_typed_one_of_standalone_and_several_nodes_wins() {
        let (line, warnings) = settled(&["--standalone", "s"], &[("PET_NNODES", "2")]);
        assert_eq!(line, ["--standalone", "--", "s"]);
        assert_eq!(
            warnings,
            ["--standalone starts a job with one node, although PET_NNODES is 2"]
        );
        let (line, warnings) = settled(&["--nnodes=2", "s"], &[("PET_STANDALONE", "1")]);
        assert_eq!((&*line[0], warnings.len()), ("--nnodes=2", 1));
        assert!(
            settled(&["--standalone", "s"], &[("PET_NNODES", "1")])
                .1
                .is_empty()
        );
    }
}
