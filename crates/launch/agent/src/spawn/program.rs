//! Program to execute, in the form that the kernel accepts.
//!
//! All memory is allocated before the new process exists.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::iter::once;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Search path if the environment has no `PATH`, as in the C library.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// Shell that runs a file without a `#!` line, as in `execvp`.
const SHELL: &std::ffi::CStr = c"/bin/sh";

/// File that may be the program, with the arguments for a shell that runs it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) file: CString,
    pub(super) shell_arguments: Vec<CString>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Files to try, in this order.
    pub(super) candidates: Vec<Candidate>,
    pub(super) arguments: Vec<CString>,
    pub(super) environment: Vec<CString>,
}

impl Program {
    /// Creates a program; a `name` without a slash is searched for in `PATH`.
    /// `PATH` is the variable of `environment`.
    pub(super) fn new(
        name: &OsStr,
        arguments: Vec<OsString>,
        environment: &BTreeMap<OsString, OsString>,
    ) -> io::Result<Self> {
        let arguments = once(Ok(c_string(name)?))
            .chain(arguments.iter().map(|argument| c_string(argument)))
            .collect::<io::Result<Vec<_>>>()?;
        let files = if name.is_empty() || name.as_bytes().contains(&b'/') {
            vec![name.to_owned()]
        } else {
            let path = environment.get(OsStr::new("PATH"));
            in_path(
                path.map_or(OsStr::new(USUAL_PATH), OsString::as_os_str),
                name,
            )
        };
        let candidate = |file: OsString| {
            let file = c_string(&file)?;
            let shell_arguments = [SHELL.to_owned(), file.clone()]
                .into_iter()
                .chain(arguments.iter().skip(1).cloned())
                .collect();
            Ok(Candidate {
                file,
                shell_arguments,
            })
        };
        Ok(Self {
            candidates: files
                .into_iter()
                .map(candidate)
                .collect::<io::Result<_>>()?,
            environment: environment
                .iter()
                .map(|(name, value)| c_string(&[name.as_os_str(), value].join(OsStr::new("="))))
                .collect::<io::Result<_>>()?,
            arguments,
        })
    }
}

/// Returns the files with this name in the directories of a `PATH`.
/// An empty entry means the working directory.
fn in_path(path: &OsStr, name: &OsStr) -> Vec<OsString> {
    let directories = path.as_bytes().split(|byte| *byte == b':');
    directories
        .map(|directory| match directory {
            [] => name.to_owned(),
            directory => OsString::from_vec([directory, b"/", name.as_bytes()].concat()),
        })
        .collect()
}

pub(super) fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(name: &str, environment: &[(&str, &str)]) -> Vec<String> {
        let environment = environment
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        let program = Program::new(OsStr::new(name), Vec::new(), &environment).unwrap();
        let file = |candidate: &Candidate| candidate.file.to_str().unwrap().to_owned();
        program.candidates.iter().map(file).collect()
    }

    #[test]
    fn a_name_without_a_slash_is_looked_up_in_the_path_of_its_own_environment() {
        assert_eq!(files("true", &[]), ["/bin/true", "/usr/bin/true"]);
        assert_eq!(
            files("true", &[("PATH", "/a b::/c")]),
            ["/a b/true", "true", "/c/true"]
        );
        assert_eq!(files("./true", &[("PATH", "/a")]), ["./true"]);
        assert_eq!(files("", &[("PATH", "/a")]), [""]);
    }

    #[test]
    fn a_shell_would_get_the_file_and_the_arguments_after_the_name() {
        let arguments = vec!["1".into(), "2".into()];
        let environment = BTreeMap::from([("A".into(), "b=c".into()), ("B".into(), "".into())]);
        let program = Program::new(OsStr::new("/x"), arguments, &environment).unwrap();
        assert_eq!(program.arguments, [c"/x", c"1", c"2"].map(CString::from));
        let shell = [c"/bin/sh", c"/x", c"1", c"2"].map(CString::from);
        assert_eq!(program.candidates[0].shell_arguments, shell);
        assert_eq!(program.environment, [c"A=b=c", c"B="].map(CString::from));
    }

    #[test]
    fn a_nul_byte_is_refused() {
        let error = Program::new(OsStr::new("a\0"), Vec::new(), &BTreeMap::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
