use super::super::parse::command;
use super::*;
use crate::args::Launcher;

fn normalised(line: &[&str], variables: &[(&str, &str)]) -> Result<Normalised, Refusal> {
    let line: Vec<OsString> = line.iter().map(OsString::from).collect();
    let environment = variables
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    normalise(&command(Launcher::Torchrun), &line, &environment)
}

fn line(words: &[&str]) -> Vec<String> {
    let result = normalised(words, &[]).unwrap();
    assert!(result.unknown.is_empty(), "{:?}", result.unknown);
    let text = |word: OsString| word.into_string().unwrap();
    result.line.into_iter().map(text).collect()
}

fn refusal(words: &[&str]) -> String {
    normalised(words, &[]).unwrap_err().to_string()
}

#[test]
fn both_spellings_and_prefixes_mean_the_same_option() {
    for typed in [
        "--nproc-per-node",
        "--nproc_per_node",
        "--nproc-per",
        "--nproc_",
    ] {
        assert_eq!(line(&[typed, "2"]), ["--nproc-per-node=2"], "{typed}");
    }
    assert_eq!(line(&["--stand", "--nn=1"]), ["--standalone", "--nnodes=1"]);
    assert_eq!(line(&["-r3", "-t", "1"]), ["--redirects=3", "--tee=1"]);
    assert_eq!(line(&["-mr3"]), ["--module", "--redirects=3"]);
}

#[test]
fn a_prefix_of_two_spellings_is_ambiguous() {
    assert_eq!(
        refusal(&["--nproc", "2", "s.py"]),
        "ambiguous option: --nproc could match --nproc-per-node, --nproc_per_node"
    );
    assert_eq!(
        refusal(&["--no"]),
        "ambiguous option: --no could match --no-python, --no_python, --node-rank, --node_rank"
    );
}

#[test]
fn options_of_ours_leave_the_prefixes_of_torchrun_alone() {
    for typed in ["--h", "--he"] {
        assert_eq!(line(&[typed]), ["--help"], "{typed}");
    }
    assert_eq!(line(&["--hang-t", "3"]), ["--hang-timeout=3"]);
    assert!(refusal(&["--hang"]).contains("ambiguous option"));
}

#[test]
fn negative_numbers_are_values_and_other_dashes_are_not() {
    assert_eq!(line(&["--max-restarts", "-1"]), ["--max-restarts=-1"]);
    assert_eq!(
        line(&["--monitor-interval", "-.5"]),
        ["--monitor-interval=-.5"]
    );
    assert_eq!(line(&["--role", "-a b"]), ["--role=-a b"]);
    for words in [
        &["--role"][..],
        &["--role", "--standalone"],
        &["--role", "-x"],
        &["--role", "--", "x"],
    ] {
        assert_eq!(
            refusal(words),
            "argument --role: expected one argument",
            "{words:?}"
        );
    }
    assert_eq!(refusal(&["-t"]), "argument -t/--tee: expected one argument");
}

#[test]
fn switches_take_no_value() {
    assert_eq!(
        refusal(&["--standalone=1", "s.py"]),
        "argument --standalone: ignored explicit argument '1'"
    );
}

#[test]
fn everything_behind_the_script_is_the_scripts() {
    assert_eq!(
        line(&["--nn", "1", "s.py", "--nproc-per-node", "3", "-h"]),
        ["--nnodes=1", "--", "s.py", "--nproc-per-node", "3", "-h"]
    );
}

#[test]
fn a_double_dash_is_dropped_before_the_script_and_directly_after_it() {
    assert_eq!(line(&["--", "s.py", "--x"]), ["--", "s.py", "--x"]);
    assert_eq!(line(&["s.py", "--", "a"]), ["--", "s.py", "a"]);
    assert_eq!(
        line(&["s.py", "a", "--", "b"]),
        ["--", "s.py", "a", "--", "b"]
    );
    assert_eq!(line(&["s.py", "--", "--", "b"]), ["--", "s.py", "--", "b"]);
    assert_eq!(
        line(&["--", "s.py", "--", "--x", "--"]),
        ["--", "s.py", "--", "--x", "--"]
    );
}

#[test]
fn unknown_options_are_collected_and_do_not_take_values() {
    let result = normalised(&["--bogus", "3", "s.py"], &[]).unwrap();
    assert_eq!(result.unknown, ["--bogus"]);
    assert_eq!(result.line, ["--", "3", "s.py"]);
}

#[test]
fn help_ends_the_line() {
    assert_eq!(
        line(&["--nn", "1", "-h", "--nproc"]),
        ["--nnodes=1", "--help"]
    );
    assert_eq!(
        line(&["--print-completion", "zsh", "--bogus"]),
        ["--print-completion=zsh"]
    );
}

#[test]
fn the_environment_gives_defaults_that_the_line_overrides() {
    let environment = [
        ("PET_NPROC_PER_NODE", "2"),
        ("PET_STANDALONE", "1"),
        ("PET_NO_PYTHON", "0"),
        ("PET_R", "3"),
        ("PET_NUMA_BINDING", "node"),
        ("PET_START_METHOD", "bogus"),
    ];
    let result = normalised(&["s.py"], &environment).unwrap();
    assert_eq!(
        result.line,
        ["--nproc-per-node=2", "--standalone", "--", "s.py"]
    );
    let result = normalised(&["--nproc-per-node", "1", "s.py"], &environment).unwrap();
    assert_eq!(
        result.line,
        ["--nproc-per-node=1", "--standalone", "--", "s.py"]
    );
}

#[test]
fn an_option_of_ours_with_choices_takes_its_value_from_the_environment() {
    let environment = [("PET_TORCH_CLIENTS", "deny"), ("PET_UI", "plain")];
    let mut line = normalised(&["s.py"], &environment).unwrap().line;
    line.sort();
    assert_eq!(line, ["--", "--torch-clients=deny", "--ui=plain", "s.py"]);
}

#[test]
fn a_flag_that_is_not_utf_8_is_unknown() {
    let word = OsString::from_vec(b"--\xff=\xff".to_vec());
    let options = command(Launcher::Torchrun);
    let result = normalise(&options, std::slice::from_ref(&word), &BTreeMap::new());
    assert_eq!(result.unwrap().unknown, ["--\u{fffd}=\u{fffd}"]);
}

#[test]
fn a_flag_in_the_environment_must_be_a_number() {
    for text in ["abc", ""] {
        let error = normalised(&["--help"], &[("PET_STANDALONE", text)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("ValueError: invalid literal for int() with base 10: '{text}'")
        );
    }
}

#[test]
fn variables_that_no_flag_reads_are_named_with_the_closest_one() {
    let environment = [
        ("PET_NPROC", "2"),
        ("PET_MAX_RESTART", "2"),
        ("PET_NNODES", "2"),
    ];
    let environment = environment
        .map(|(name, value)| (name.into(), value.into()))
        .into();
    assert_eq!(
        unknown_variables(&command(Launcher::Torchrun), &environment),
        [
            "the variable PET_MAX_RESTART has no effect, because no flag reads it (did you mean \
             'PET_MAX_RESTARTS'?)",
            "the variable PET_NPROC has no effect, because no flag reads it",
        ]
    );
}
