//! Credentials of the job, and the admission of clients without any.
//!
//! The token is in a file. A token in a variable would be visible in `/proc/PID/environ` of every
//! process of the launch. So [`hide_variable`] writes it to a private file, unless another variable
//! names a file, and executes the program again without the variable.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use clap::Args;
use rdzv_core::env::{
    RDZV_JOB_TOKEN, RDZV_JOB_TOKEN_FILE, RDZV_TLS_CA, RDZV_TLS_CERT, RDZV_TLS_KEY, RDZV_TOKEN_COPY,
};
use rdzv_store::{Credentials, Identity, Token, TorchClients};
use rdzv_trust::credentials::is_readable_by_others;
use rdzv_trust::token::generate;

use crate::exit::{Exit, Refusal};
use crate::explanation::Draft;
use crate::terminal::{complain, show};

/// Warning for a run or store without credentials that other hosts can reach.
pub(crate) const NO_TOKEN: &str = "this job has no token: anyone who can reach its ports can read, \
                                   change or stop it; create a token with `rdzv token --output \
                                   FILE` and start every node with --token-file FILE";

/// Warning for `--torch-clients any`.
const ANY_CLIENT: &str = "--torch-clients any admits clients without the token, such as agents \
    of torchrun: anyone who can reach the ports of this job can join, read, change and stop it";

/// Flags of `rdzv run` and `rdzv store`.
#[derive(Debug, Clone, Args, PartialEq, Eq, Default)]
pub(crate) struct TrustArgs {
    /// File with the job token, the same on all nodes.
    ///
    /// Agents, stores and clients of rdzv prove to one another on every connection that they have
    /// the token. They never send it. The token has at least 16 bytes; `rdzv token` creates one.
    /// Without this flag, RDZV_JOB_TOKEN_FILE names the file, or RDZV_JOB_TOKEN is the token.
    /// `rdzv run` sets RDZV_JOB_TOKEN_FILE to this path for workers.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// PyTorch clients that a job with a token admits: deny, job or any.
    ///
    /// PyTorch's clients cannot prove that they have the token. `deny` admits none of them. `job`
    /// (the default) admits clients on loopback and on the addresses of the job's nodes. They can
    /// use the workers' store, but never the rendezvous. `any` admits agents of torchrun, and
    /// anyone else who can reach a port. With `rdzv store`, `job` is the same as `deny`.
    #[arg(long, value_name = "WHO", value_parser = ["deny", "job", "any"])]
    torch_clients: Option<String>,

    /// Certificate of this node, in PEM, for encrypted connections (TLS 1.3)
    ///
    /// Encrypts the connections of agents and stores. Needs --tls-key and --tls-ca. Both sides
    /// present a certificate that the authority has signed; rdzv does not check the names in it.
    /// Connections of PyTorch's clients are not encrypted.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Private key of --tls-cert, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Certificate of the authority that signs all nodes' certificates, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

#[derive(Debug, Default)]
pub(crate) struct Trust {
    pub(crate) credentials: Credentials,
    pub(crate) torch_clients: TorchClients,
    /// Variables for the workers.
    pub(crate) variables: Vec<(&'static str, PathBuf)>,
    pub(crate) warnings: Vec<String>,
}

impl TrustArgs {
    /// Reads the files that the flags and variables name.
    ///
    /// A relative path starts at `directory`. `variable` returns the value of a variable.
    pub(crate) fn resolve(
        &self,
        variable: impl Fn(&str) -> Option<OsString>,
        directory: &Path,
    ) -> Result<Trust, Refusal> {
        let mut trust = Trust::default();
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let flag = self.token_file.clone().map(|path| ("--token-file", path));
        let named = || Some((RDZV_JOB_TOKEN_FILE, variable(RDZV_JOB_TOKEN_FILE)?.into()));
        if let Some((source, path)) = flag.or_else(named) {
            let path = directory.join(path);
            let token = Token::from_file(&path);
            let token = token.map_err(|e| Refusal::argument(source, &e.to_string()))?;
            if is_readable_by_others(&path).unwrap_or(false) {
                trust.warnings.push(format!(
                    "other users of this host can read the token file {}; run `chmod 600` on it",
                    path.display()
                ));
            }
            trust.credentials.token = Some(token);
            trust.variables.push((RDZV_JOB_TOKEN_FILE, path));
        }
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => {}
            (Some(cert), Some(key), Some(ca)) => {
                let [cert, key, ca] = [cert, key, ca].map(|path| directory.join(path));
                let identity = Identity::from_files(&cert, &key, &ca);
                let identity =
                    identity.map_err(|e| Refusal::argument("--tls-cert", &e.to_string()))?;
                trust.credentials.identity = Some(Arc::new(identity));
                let files = [
                    (RDZV_TLS_CERT, cert),
                    (RDZV_TLS_KEY, key),
                    (RDZV_TLS_CA, ca),
                ];
                trust.variables.extend(files);
            }
            _ => {
                let problem =
                    "--tls-cert, --tls-key and --tls-ca belong together; specify all three";
                return Err(Refusal::argument("--tls-cert", problem));
            }
        }
        if let Some(who) = &self.torch_clients {
            if trust.credentials.is_empty() {
                let problem = "it needs a job token or certificates; specify --token-file too";
                return Err(Refusal::argument("--torch-clients", problem));
            }
            trust.torch_clients = match who.as_str() {
                "deny" => TorchClients::Deny,
                "job" => TorchClients::Job,
                "any" => TorchClients::Any,
                // The parser refuses other values, of the flag and of its variable.
                other => {
                    let problem = format!("'{other}' is not one of deny, job and any");
                    return Err(Refusal::argument("--torch-clients", &problem));
                }
            };
        }
        if trust.torch_clients == TorchClients::Any {
            trust.warnings.push(ANY_CLIENT.to_owned());
        }
        Ok(trust)
    }
}

/// Adds the section about the secret to an explanation.
pub(crate) fn explain(draft: &mut Draft) {
    draft.section("Job token and TLS");
    draft.flag("token", "token_file");
    draft.flag("PyTorch's clients", "torch_clients");
    draft.flag("certificate", "tls_cert");
    draft.flag("key of the certificate", "tls_key");
    draft.flag("authority", "tls_ca");
}

/// Moves the token from a variable to a private file.
///
/// If the variable is set, this program is executed again without it. So the function returns only
/// if the variable is not set, or with an error.
pub(crate) fn hide_variable() -> io::Result<()> {
    let Some(token) = std::env::var_os(RDZV_JOB_TOKEN) else {
        return Ok(());
    };
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_else(|| "rdzv".into());
    let mut again = Command::new("/proc/self/exe");
    again.arg0(called).args(words).env_remove(RDZV_JOB_TOKEN);
    if !token.is_empty() && std::env::var_os(RDZV_JOB_TOKEN_FILE).is_none() {
        let path = std::env::temp_dir().join(format!("rdzv-token-{:032x}", fastrand::u128(..)));
        write_private(&path, token.as_encoded_bytes())?;
        again.env(RDZV_JOB_TOKEN_FILE, &path);
        again.env(RDZV_TOKEN_COPY, &path);
    }
    Err(again.exec())
}

/// Removes the file of [`hide_variable`], if this program was started with one.
pub(crate) fn remove_copy() {
    if let Some(path) = std::env::var_os(RDZV_TOKEN_COPY) {
        // Another process may have removed the file already.
        let _ = fs::remove_file(path);
    }
}

/// Writes a new file that only this user can read.
fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = OpenOptions::new();
    let mut file = new.write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)
}

/// Flags of `rdzv token`.
#[derive(Debug, Clone, Args, PartialEq, Eq)]
pub(crate) struct TokenArgs {
    /// New file for the token, readable only by this user (default: stdout)
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print the bearer token of the status pages for the job token in FILE.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    bearer: Option<PathBuf>,
}

/// Runs `rdzv token`.
pub(crate) fn make_token(arguments: &TokenArgs) -> ExitCode {
    if let Some(path) = &arguments.bearer {
        return match Token::from_file(path) {
            Ok(token) => show(&(token.bearer() + "\n")),
            Err(error) => {
                complain(&format!("rdzv token: {error}"));
                Exit::Usage.into()
            }
        };
    }
    match &arguments.output {
        None => show(&generate()),
        Some(path) => match write_private(path, generate().as_bytes()) {
            Ok(()) => Exit::Success.into(),
            Err(error) => {
                complain(&format!(
                    "rdzv token: cannot create {}: {error}; specify a new file in an existing, \
                     writable directory",
                    path.display()
                ));
                Exit::Usage.into()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(arguments: &TrustArgs, variables: &[(&str, &Path)]) -> Result<Trust, String> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_os_str().to_owned())
        };
        arguments
            .resolve(find, Path::new("/nowhere"))
            .map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn the_flag_wins_over_the_variable_and_workers_get_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let (flag, variable) = (folder.path().join("flag"), folder.path().join("variable"));
        write_private(&flag, generate().as_bytes()).unwrap();
        write_private(&variable, b"short").unwrap();
        let arguments = TrustArgs {
            token_file: Some(flag.clone()),
            ..TrustArgs::default()
        };
        let trust = resolve(&arguments, &[(RDZV_JOB_TOKEN_FILE, &variable)]).unwrap();
        assert_eq!(trust.variables, [(RDZV_JOB_TOKEN_FILE, flag)]);
        assert!(trust.warnings.is_empty());
        let error = resolve(&TrustArgs::default(), &[(RDZV_JOB_TOKEN_FILE, &variable)]);
        let error = error.unwrap_err();
        assert!(error.contains("RDZV_JOB_TOKEN_FILE: "), "{error}");
        assert!(error.contains("5 bytes is too easy to guess"), "{error}");
    }

    #[test]
    fn without_anything_there_are_no_credentials() {
        let trust = resolve(&TrustArgs::default(), &[]).unwrap();
        assert!(trust.credentials.is_empty() && trust.variables.is_empty());
        let arguments = TrustArgs {
            torch_clients: Some("any".to_owned()),
            ..TrustArgs::default()
        };
        let error = resolve(&arguments, &[]).unwrap_err();
        assert!(error.contains("needs a job token"), "{error}");
    }

    #[test]
    fn nothing_is_less_strict_than_it_was_meant_to_be() {
        let file = |name: &str| Some(PathBuf::from(name));
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        write_private(&token, generate().as_bytes()).unwrap();
        let arguments = TrustArgs {
            token_file: Some(token),
            // On a command line, the parser refuses this value.
            torch_clients: Some("denny".to_owned()),
            ..TrustArgs::default()
        };
        let error = resolve(&arguments, &[]).unwrap_err();
        assert!(
            error.contains("'denny' is not one of deny, job and any"),
            "{error}"
        );
        for (tls_cert, tls_key, tls_ca) in [
            (file("c"), None, None),
            (file("c"), file("k"), None),
            (None, None, file("a")),
        ] {
            let arguments = TrustArgs {
                tls_cert,
                tls_key,
                tls_ca,
                ..TrustArgs::default()
            };
            let error = resolve(&arguments, &[]).unwrap_err();
            assert!(error.contains("specify all three"), "{error}");
        }
    }
}
