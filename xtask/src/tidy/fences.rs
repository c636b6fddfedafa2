//! What is allowed in one place only: `unsafe`, names of environment variables, globals.

use anyhow::Context;

use super::Finding;
use super::lexer::{Kind, pieces, words};
use super::source::Source;

/// The step between fork and exec cannot be written without it.
const MAY_BE_UNSAFE: [&str; 1] = ["crates/agent/src/spawn/child.rs"];

/// The one file that spells the environment.
const ENVIRONMENT: &str = "crates/core/src/env.rs";

/// Beside the flags they are the defaults of.
const FLAG_DEFAULTS: &str = "crates/cli/src/args/";

/// Code that installs something for the whole process: for programs, not for libraries.
const GLOBALS: [&str; 4] = [
    "set_global_default",
    "set_logger",
    "set_hook",
    "tracing_subscriber",
];

/// The crates that are programs.
const PROGRAMS: [&str; 2] = ["cli", "sim"];

pub(crate) fn check(sources: &[Source]) -> anyhow::Result<Vec<Finding>> {
    let environment = sources
        .iter()
        .find(|source| source.path == ENVIRONMENT)
        .with_context(|| format!("{ENVIRONMENT} is gone"))?;
    let names = declared_names(&environment.text);
    anyhow::ensure!(!names.is_empty(), "{ENVIRONMENT} declares no variable");
    Ok(sources
        .iter()
        .filter(|source| source.is_rust())
        .flat_map(|source| {
            let mut findings = unsafe_code(source);
            findings.extend(environment_names(source, &names));
            findings.extend(globals(source));
            findings
        })
        .collect())
}

fn unsafe_code(source: &Source) -> Vec<Finding> {
    if MAY_BE_UNSAFE.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for piece in pieces(&source.text)
        .iter()
        .filter(|piece| piece.kind == Kind::Code)
    {
        for (offset, _) in words(piece.text).filter(|(_, word)| *word == "unsafe") {
            let rule = format!("unsafe code belongs in {}", MAY_BE_UNSAFE.join(", "));
            findings.push(Finding::new(source.place(piece, offset), rule));
        }
    }
    findings
}

/// The names in the `variables!` block.
fn declared_names(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| is_variable(name))
        .map(str::to_owned)
        .collect()
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn environment_names(source: &Source, names: &[String]) -> Vec<Finding> {
    if source.path == ENVIRONMENT || !source.is_shipped() {
        return Vec::new();
    }
    let may_name_flag_defaults = source.path.starts_with(FLAG_DEFAULTS);
    let mut findings = Vec::new();
    for piece in source.shipped_pieces(Kind::Text) {
        // A sentence may name a variable to the user; a text without blanks is the name itself.
        if piece.text.contains(char::is_whitespace) {
            continue;
        }
        for (offset, word) in words(piece.text) {
            let declared = names.iter().any(|name| name == word);
            let foreign = is_variable(word)
                && (word.starts_with("TORCHELASTIC_")
                    || word.starts_with("TORCH_")
                    || word.starts_with("PET_") && !may_name_flag_defaults);
            if declared || foreign {
                let rule = format!("the variable {word} is spelt in {ENVIRONMENT} only");
                findings.push(Finding::new(source.place(&piece, offset), rule));
            }
        }
    }
    findings
}

fn globals(source: &Source) -> Vec<Finding> {
    let library = source
        .crate_folder()
        .is_some_and(|folder| !PROGRAMS.contains(&folder));
    if !library || !source.is_shipped() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for piece in source.shipped_pieces(Kind::Code) {
        for (offset, word) in words(piece.text) {
            if GLOBALS.contains(&word) {
                let rule = format!("a library installs no global: {word}");
                findings.push(Finding::new(source.place(&piece, offset), rule));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::source::example;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let environment = example(
            ENVIRONMENT,
            "variables! {\n    RANK;\n    MASTER_ADDR;\n}\n",
        );
        let findings = check(&[environment, example(path, text)]).unwrap();
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unsafe_code_is_found_outside_its_file_and_also_in_tests() {
        let text = "// unsafe\nfn f() {\n    unsafe { g() }\n}\n";
        let all = found("crates/store/tests/a.rs", text);
        assert_eq!(
            all,
            ["crates/store/tests/a.rs:3: unsafe code belongs in crates/agent/src/spawn/child.rs"]
        );
        assert_eq!(found("crates/agent/src/spawn/child.rs", text).len(), 0);
    }

    #[test]
    fn a_lint_name_is_not_unsafe_code() {
        assert_eq!(
            found("crates/store/src/lib.rs", "#![forbid(unsafe_code)]\n").len(),
            0
        );
    }

    #[test]
    fn a_variable_spelt_elsewhere_is_found() {
        let text = "fn f() { g(\"RANK\", \"needs MASTER_ADDR\", \"MASTER_ADDR=\", \"TORCH_X\") }\n";
        let all = found("crates/rendezvous/src/url.rs", text);
        assert_eq!(all.len(), 3, "{all:?}");
    }

    #[test]
    fn tests_may_spell_variables() {
        let text = "#[cfg(test)]\nmod tests {\n    const A: &str = \"RANK\";\n}\n";
        assert_eq!(found("crates/rendezvous/src/url.rs", text).len(), 0);
        assert_eq!(
            found(
                "crates/rendezvous/tests/url.rs",
                "const A: &str = \"RANK\";"
            )
            .len(),
            0
        );
    }

    #[test]
    fn flag_defaults_are_spelt_beside_their_flags() {
        let text = "const A: &str = \"PET_NNODES\";\n";
        assert_eq!(found("crates/cli/src/args/run.rs", text).len(), 0);
        assert_eq!(found("crates/agent/src/lib.rs", text).len(), 1);
    }

    #[test]
    fn a_library_that_installs_a_global_is_found() {
        let text = "fn f() { tracing::subscriber::set_global_default(s); }\n";
        assert_eq!(found("crates/agent/src/lib.rs", text).len(), 1);
        assert_eq!(found("crates/cli/src/main.rs", text).len(), 0);
    }
}
