//! Name of this host, as reports and events show it.
//!
//! ```text
//!   look_up ──► thread: name ─► address ─► name      as Python's `socket.getfqdn` asks
//!                  │ answer
//!   full_name ─────┴─ waits, until 1 s after the beginning        reports
//!   name_so_far ───── does not wait                               events
//! ```
//!
//! The resolver may take long: tens of seconds if a name server does not answer. A process
//! therefore asks it once, on a separate thread, and no caller waits longer than 1 s.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use rdzv_core::escape::escape;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest wait for the resolver, from the start of the lookup.
const LIMIT: Duration = Duration::from_secs(1);

static LOOKUP: LazyLock<Arc<Lookup>> = LazyLock::new(|| Lookup::begin(own_name(), ask));

/// Begins to look up the full name of this host, unless it has begun.
/// Returns immediately.
pub fn look_up() {
    LazyLock::force(&LOOKUP);
}

/// Returns the full name of this host, like `socket.getfqdn` in Python.
///
/// The name comes from the resolver: the hosts file, DNS or whatever the machine uses. The function
/// waits for the answer for up to 1 s after the lookup began.
///
/// Returns the host's own name if the resolver does not answer in time, does not know the host, or
/// returns `localhost` or a name without a domain. The hosts file completes this own name if
/// possible.
pub fn full_name() -> String {
    LOOKUP.within(LIMIT)
}

/// Returns the full name of this host if it is known, otherwise its own name.
pub fn name_so_far() -> String {
    LOOKUP.within(Duration::ZERO)
}

/// Name of a host in events, which do not wait for a resolver.
/// Its JSON form and its text form are the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostName {
    /// Name of this host at the time of writing: the full one once it is known.
    This,
    /// Specified name.
    Given(String),
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::This => formatter.write_str(&name_so_far()),
            Self::Given(name) => formatter.write_str(name),
        }
    }
}

impl Serialize for HostName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::Given)
    }
}

struct Lookup {
    own: String,
    began: Instant,
    /// `None` until there is an answer.
    answer: Mutex<Option<Answer>>,
    answered: Condvar,
}

/// Full name, if the resolver knows one.
type Answer = Option<String>;

impl Lookup {
    fn begin(own: String, ask: impl FnOnce(&str) -> Answer + Send + 'static) -> Arc<Self> {
        let lookup = Arc::new(Self {
            own,
            began: Instant::now(),
            answer: Mutex::new(None),
            answered: Condvar::new(),
        });
        let asking = Arc::clone(&lookup);
        let thread = thread::Builder::new().name("host name".to_owned());
        let spawned = thread.spawn(move || {
            let answer = ask(&asking.own);
            asking.answer(answer);
        });
        if spawned.is_err() {
            lookup.answer(None);
        }
        lookup
    }

    fn answer(&self, answer: Answer) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        self.answered.notify_all();
    }

    /// Returns the name that is known `limit` after the beginning of the lookup.
    /// If that time has passed, returns the name that is known now.
    fn within(&self, limit: Duration) -> String {
        let left = limit.saturating_sub(self.began.elapsed());
        let answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        let (answer, _) = self
            .answered
            .wait_timeout_while(answer, left, |answer| answer.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        answer.clone().flatten().unwrap_or_else(|| self.own.clone())
    }
}

/// Returns the host's own name, with the domain from the hosts file.
fn own_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    escape(&with_domain(&name, &hosts).unwrap_or(name))
}

fn with_domain(name: &str, hosts: &str) -> Option<String> {
    if name.contains('.') {
        return None;
    }
    hosts.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let names: Vec<&str> = line.split_whitespace().skip(1).collect();
        let full = names
            .iter()
            .find(|other| other.split('.').next() == Some(name) && other.contains('.'))?;
        names.contains(&name).then(|| (*full).to_owned())
    })
}

/// Asks the resolver for the address of a host, then for the address's name.
fn ask(own: &str) -> Answer {
    let address = (own, 0).to_socket_addrs().ok()?.next()?.ip();
    full(&dns_lookup::lookup_addr(&address).ok()?)
}

/// Returns `name` if it is the full name of a host.
/// An address is not a name: it means that the name is unknown. `localhost` does not count either,
/// because every host has this name for itself.
fn full(name: &str) -> Answer {
    let mut parts = name.split('.');
    let first = parts.next();
    let is_full =
        parts.next().is_some() && first != Some("localhost") && name.parse::<IpAddr>().is_err();
    is_full.then(|| escape(name))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_hosts_file_completes_a_short_name() {
        let hosts = "127.0.0.1 localhost\n10.0.0.4 node-a.example node-a # ours\n";
        assert_eq!(
            with_domain("node-a", hosts).as_deref(),
            Some("node-a.example")
        );
        assert_eq!(with_domain("node-b", hosts), None);
        assert_eq!(with_domain("node-a.other", hosts), None);
    }

    #[test]
    fn a_full_name_has_a_domain_and_is_no_address() {
        let (known, unknown) = (|name: &str| Some(name.to_owned()), None);
        for (name, expected) in [
            ("node-a.example", known("node-a.example")),
            ("node-\u{1b}.example", known("node-\\u{1b}.example")),
            ("node-a", unknown.clone()),
            ("10.0.0.4", unknown.clone()),
            ("fe80::1", unknown.clone()),
            ("localhost", unknown.clone()),
            ("localhost.localdomain", unknown.clone()),
            ("", unknown),
        ] {
            assert_eq!(full(name), expected, "{name}");
        }
    }

    #[test]
    fn the_answer_of_the_resolver_is_the_name() {
        let answer = |answer: Option<&'static str>| {
            let lookup = Lookup::begin("node-a".to_owned(), move |own| {
                assert_eq!(own, "node-a");
                answer.map(str::to_owned)
            });
            lookup.within(Duration::from_secs(60))
        };
        assert_eq!(answer(Some("node-a.example")), "node-a.example");
        assert_eq!(answer(None), "node-a");
    }

    #[test]
    fn a_resolver_that_does_not_answer_is_not_waited_for() {
        let (answer, answers) = channel();
        let lookup = Lookup::begin("node-a".to_owned(), move |_| answers.recv().ok());
        assert_eq!(lookup.within(Duration::ZERO), "node-a");
        let limit = Duration::from_millis(50);
        assert_eq!(lookup.within(limit), "node-a");
        let waited = lookup.began.elapsed();
        assert!(
            waited >= limit && waited < Duration::from_secs(30),
            "{waited:?}"
        );
        answer.send("node-a.example".to_owned()).unwrap();
        assert_eq!(lookup.within(Duration::from_secs(60)), "node-a.example");
    }
}
