//! Parser of Slurm's lists of hosts: `n[1-3,07-09],gpu-a[1-2]x[3-4]`.

/// Maximum number of hosts in a list.
const MOST_HOSTS: usize = 65_536;

/// Returns the host names, in the order of the list.
///
/// In a name with several brackets, the last one changes fastest.
///
/// # Errors
///
/// Returns the reason why the list cannot be parsed.
pub(super) fn hosts(list: &str) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for entry in entries(list)? {
        let expanded = expand(entry)?;
        if names.len() + expanded.len() > MOST_HOSTS {
            return Err(format!("it contains more than {MOST_HOSTS} hosts"));
        }
        names.extend(expanded);
    }
    Ok(names)
}

/// Splits the list at the commas outside brackets.
fn entries(list: &str) -> Result<Vec<&str>, String> {
    let mut entries = Vec::new();
    let (mut begin, mut is_inside) = (0, false);
    for (offset, letter) in list.char_indices() {
        match letter {
            '[' if is_inside => return Err("it has nested brackets".to_owned()),
            '[' => is_inside = true,
            ']' if !is_inside => {
                return Err("it has a closing bracket without an opening bracket".to_owned());
            }
            ']' => is_inside = false,
            ',' if !is_inside => {
                entries.push(&list[begin..offset]);
                begin = offset + 1;
            }
            ',' | '-' | '.' | '_' => {}
            letter if letter.is_ascii_alphanumeric() => {}
            letter => return Err(format!("{letter:?} is not allowed in a host name")),
        }
    }
    if is_inside {
        return Err("it has an opening bracket without a closing bracket".to_owned());
    }
    entries.push(&list[begin..]);
    Ok(entries)
}

/// Returns the names of one entry.
fn expand(entry: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = entry;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after
            .split_once(']')
            .ok_or("it has an opening bracket without a closing bracket")?;
        let numbers = numbers(ranges)?;
        if names.len() * numbers.len() > MOST_HOSTS {
            return Err(format!("it contains more than {MOST_HOSTS} hosts"));
        }
        names = names
            .iter()
            .flat_map(|name| {
                numbers
                    .iter()
                    .map(move |number| format!("{name}{before}{number}"))
            })
            .collect();
        rest = behind;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    if names.iter().any(String::is_empty) {
        Err("a name is empty".to_owned())
    } else {
        Ok(names)
    }
}

/// Returns the numbers of a text such as `1-3,07-09`.
///
/// The numbers of a range are at least as wide as its first number.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u64>().ok().filter(|_| is_number);
            number.ok_or_else(|| format!("{range:?} is not a range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to {
            return Err(format!("{range:?} is not a range of numbers"));
        }
        if to - from >= MOST_HOSTS as u64 {
            return Err(format!("it contains more than {MOST_HOSTS} hosts"));
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::*;

    /// Returns a random list that Slurm might write.
    fn random_list(random: &mut fastrand::Rng) -> String {
        let entries = (0..random.usize(1..4)).map(|_| {
            let mut entry = random.alphabetic().to_string();
            let groups = random.usize(0..3);
            for group in 1..=groups {
                let ranges = (0..random.usize(1..4)).map(|_| {
                    let width = random.usize(1..5);
                    let first = random.u32(0..10_u32.pow(width as u32));
                    if random.bool() {
                        format!("{first:0width$}")
                    } else {
                        format!("{first:0width$}-{:0width$}", first + random.u32(0..9))
                    }
                });
                let ranges: Vec<String> = ranges.collect();
                // `scontrol` refuses a list with text after the last brackets.
                let behind = match group {
                    _ if group == groups => "",
                    _ => ["", "-", "x", ".a"][random.usize(0..4)],
                };
                entry += &format!("[{}]{behind}", ranges.join(","));
            }
            entry
        });
        let entries: Vec<String> = entries.collect();
        entries.join(",")
    }

    /// Needs Slurm's `scontrol`, but no daemon of Slurm.
    #[test]
    #[ignore = "needs scontrol: run by `cargo xtask test`"]
    fn random_lists_are_expanded_as_scontrol_expands_them() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let lists: Vec<String> = (0..10_000).map(|_| random_list(&mut random)).collect();
        let folder = tempfile::tempdir().unwrap();
        let configuration = folder.path().join("slurm.conf");
        fs::write(
            &configuration,
            "ClusterName=a\nSlurmctldHost=localhost\nNodeName=a\n",
        )
        .unwrap();
        let mut count = 0;
        // Each process expands many lists, separated by a special name.
        for lists in lists.chunks(20) {
            let all = lists.join(",end-of-list,");
            let asked = Command::new("scontrol")
                .args(["show", "hostnames", &all])
                .env("SLURM_CONF", &configuration)
                .output();
            let answer = match asked {
                Ok(output) => String::from_utf8(output.stdout).unwrap(),
                Err(error) => return println!("skipped, as scontrol cannot be started: {error}"),
            };
            let names: Vec<&str> = answer.lines().collect();
            assert!(!names.is_empty(), "{all} is refused, seed {seed}");
            let each: Vec<&[&str]> = names.split(|name| *name == "end-of-list").collect();
            assert_eq!(each.len(), lists.len(), "seed {seed}");
            for (list, names) in lists.iter().zip(each) {
                assert_eq!(hosts(list).unwrap(), names, "{list}, seed {seed}");
                count += 1;
            }
        }
        assert_eq!(count, 10_000, "seed {seed}");
    }

    #[test]
    fn lists_are_expanded_as_slurm_expands_them() {
        for (list, names) in [
            ("n1", "n1"),
            ("n1,n2", "n1 n2"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[1,3-4],login", "n1 n3 n4 login"),
            ("n[07-10]", "n07 n08 n09 n10"),
            ("n[9-11]", "n9 n10 n11"),
            ("a[1-2]x[3-4]", "a1x3 a1x4 a2x3 a2x4"),
            ("gpu-a.b_c[0]z", "gpu-a.b_c0z"),
            ("[1-2]", "1 2"),
        ] {
            assert_eq!(
                hosts(list).map(|names| names.join(" ")),
                Ok(names.to_owned()),
                "{list}"
            );
        }
    }

    #[test]
    fn values_that_are_no_lists_are_refused() {
        for (list, reason) in [
            ("", "a name is empty"),
            ("n1,,n2", "a name is empty"),
            (
                "n[1-3",
                "it has an opening bracket without a closing bracket",
            ),
            ("n1]", "it has a closing bracket without an opening bracket"),
            ("n[[1]]", "it has nested brackets"),
            ("n[3-1]", "\"3-1\" is not a range of numbers"),
            ("n[]", "\"\" is not a range of numbers"),
            ("n[1-]", "\"1-\" is not a range of numbers"),
            ("n[a-b]", "\"a-b\" is not a range of numbers"),
            ("n[1--2]", "\"1--2\" is not a range of numbers"),
            ("n;rm", "';' is not allowed in a host name"),
            ("n 1", "' ' is not allowed in a host name"),
            (
                "n[0-99999999999999999999]",
                "\"0-99999999999999999999\" is not a range of numbers",
            ),
            ("n[0-99999]", "it contains more than 65536 hosts"),
            ("n[1-1000]x[1-1000]", "it contains more than 65536 hosts"),
            ("a[1-65000],b[1-65000]", "it contains more than 65536 hosts"),
        ] {
            assert_eq!(hosts(list), Err(reason.to_owned()), "{list}");
        }
    }
}
