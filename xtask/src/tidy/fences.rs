//! Restricted code: `unsafe` and names of environment variables.

use anyhow::Context;

use super::Finding;
use super::source::Source;
use super::tokens::{Tokens, texts, words};

/// Files that may contain `unsafe`; a path that ends with a slash is a folder.
///
/// Four tasks need it: the step between fork and exec, memory that another process writes, memory
/// that another library owns, and the driver of CUDA devices.
const MAY_BE_UNSAFE: [&str; 7] = [
    "crates/launch/agent/src/spawn/child.rs",
    "crates/launch/agent/src/spawn/clone.rs",
    "crates/python/src/memory.rs",
    "crates/calls/shm/src/",
    "crates/calls/rpc/src/dlpack/",
    "crates/calls/cuda/src/library.rs",
    "crates/test-programs/src/dlpack_border.rs",
];

/// File with the names of variables that scripts and job files rely on.
///
/// The names `PET_*`, and those of schedulers and the system, are elsewhere.
const ENVIRONMENT: &str = "crates/base/core/src/env.rs";

/// Folder whose flags have defaults in `PET_` variables, and may name them.
const FLAG_DEFAULTS: &str = "crates/launch/cli/src/args/";

/// Returns the variables that [`ENVIRONMENT`] declares.
pub(crate) fn declared_variables(sources: &[Source]) -> anyhow::Result<Vec<String>> {
    let environment = sources
        .iter()
        .find(|source| source.path == ENVIRONMENT)
        .with_context(|| format!("{ENVIRONMENT} does not exist"))?;
    let names: Vec<_> = environment
        .text
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| is_variable(name))
        .map(str::to_owned)
        .collect();
    anyhow::ensure!(!names.is_empty(), "{ENVIRONMENT} declares no variable");
    Ok(names)
}

pub(crate) fn check(source: &Source, tokens: &Tokens, variables: &[String]) -> Vec<Finding> {
    let mut findings = environment_names(source, tokens, variables);
    let may_be = |path: &&str| match path.strip_suffix('/') {
        Some(_) => source.path.starts_with(*path),
        None => source.path == **path,
    };
    if !MAY_BE_UNSAFE.iter().any(may_be) {
        let rule = format!("unsafe code belongs in {}", MAY_BE_UNSAFE.join(", "));
        let found = words(&tokens.all).filter(|word| word.text == "unsafe");
        findings.extend(found.map(|word| Finding::new(source.location(word.line), rule.clone())));
    }
    findings
}

fn is_variable(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name
            .chars()
            .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn environment_names(source: &Source, tokens: &Tokens, variables: &[String]) -> Vec<Finding> {
    if source.path == ENVIRONMENT || !source.is_shipped() {
        return Vec::new();
    }
    let may_name_flag_defaults = source.path.starts_with(FLAG_DEFAULTS);
    let mut findings = Vec::new();
    for (text, line) in texts(&tokens.shipped) {
        // A message with blanks may mention a variable. A text without blanks is the name itself.
        if text.contains(char::is_whitespace) {
            continue;
        }
        for name in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
            let declared = variables.iter().any(|variable| variable == name);
            let foreign = is_variable(name)
                && (name.starts_with("TORCHELASTIC_")
                    || name.starts_with("TORCH_")
                    || name.starts_with("PET_") && !may_name_flag_defaults);
            if declared || foreign {
                let rule = format!("the variable {name} is spelt in {ENVIRONMENT} only");
                findings.push(Finding::new(source.location(line), rule));
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
        let variables = declared_variables(&[environment]).unwrap();
        let source = example(path, text);
        let findings = check(&source, &Tokens::of(&source).unwrap(), &variables);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn unsafe_code_is_found_outside_its_file_and_also_in_tests() {
        let text = "// unsafe\nfn f() {\n    unsafe { g() }\n}\n";
        let all = found("crates/store/driver/tests/a.rs", text);
        assert_eq!(
            all,
            [
                "crates/store/driver/tests/a.rs:3: unsafe code belongs in crates/launch/agent/src/spawn/child.rs, \
                 crates/launch/agent/src/spawn/clone.rs, crates/python/src/memory.rs, crates/calls/shm/src/, crates/calls/rpc/src/dlpack/, crates/calls/cuda/src/library.rs, crates/test-programs/src/dlpack_border.rs"
            ]
        );
        for (path, findings) in [
            ("crates/launch/agent/src/spawn/child.rs", 0),
            ("crates/launch/agent/src/spawn/child.rs.rs", 1),
            ("crates/calls/shm/src/ring.rs", 0),
            ("crates/calls/shm/tests/streams.rs", 1),
            ("crates/calls/shm/srcs.rs", 1),
            ("crates/calls/rpc/src/dlpack/mod.rs", 0),
            ("crates/calls/rpc/src/tensor/mod.rs", 1),
        ] {
            assert_eq!(found(path, text).len(), findings, "{path}");
        }
    }

    #[test]
    fn a_lint_name_is_not_unsafe_code() {
        assert_eq!(
            found(
                "crates/store/driver/src/lib.rs",
                "#![forbid(unsafe_code)]\n"
            )
            .len(),
            0
        );
    }

    #[test]
    fn a_variable_spelt_elsewhere_is_found() {
        let text = "fn f() { g(\"RANK\", \"needs MASTER_ADDR\", \"MASTER_ADDR=\", \"TORCH_X\") }\n";
        let all = found("crates/rendezvous/driver/src/url.rs", text);
        assert_eq!(all.len(), 3, "{all:?}");
    }

    #[test]
    fn a_variable_in_any_kind_of_text_is_found() {
        let text = "fn f() {\n g(b\"RANK\", c\"RANK\", r#\"RANK\"#);\n h!(\"{RANK}={}\", 1)\n}\n";
        let rule = "the variable RANK is spelt in crates/base/core/src/env.rs only";
        let expected =
            [2, 2, 2, 3].map(|line| format!("crates/store/driver/src/a.rs:{line}: {rule}"));
        assert_eq!(found("crates/store/driver/src/a.rs", text), expected);
    }

    #[test]
    fn documentation_may_name_variables() {
        let text = "//! RANK\n/// RANK\nfn f() {} // \"RANK\"\n";
        assert_eq!(found("crates/store/driver/src/a.rs", text).len(), 0);
    }

    #[test]
    fn tests_may_spell_variables() {
        let text = "#[cfg(test)]\nmod tests {\n    const A: &str = \"RANK\";\n}\n";
        assert_eq!(found("crates/rendezvous/driver/src/url.rs", text).len(), 0);
        assert_eq!(
            found(
                "crates/rendezvous/driver/tests/url.rs",
                "const A: &str = \"RANK\";"
            )
            .len(),
            0
        );
    }

    #[test]
    fn flag_defaults_are_spelt_beside_their_flags() {
        let text = "const A: &str = \"PET_NNODES\";\n";
        assert_eq!(found("crates/launch/cli/src/args/run.rs", text).len(), 0);
        assert_eq!(found("crates/launch/agent/src/lib.rs", text).len(), 1);
    }
}
