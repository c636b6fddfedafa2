//! The files with the limits of this process's control groups.
//!
//! The paths are derived from `/proc/self/cgroup` and `/proc/self/mountinfo`.
//!
//! A process is in one group of each hierarchy: the unified one (v2) and, where v1 is still in use,
//! those of v1. The limits of a group's ancestors count, too. Only ancestors that are mounted here
//! are visible. In a container with a separate namespace, the visible ancestors end at the
//! container.

use std::path::{Component, Path, PathBuf};

/// The version of control groups, which determines the files of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 1, with files such as `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    V1,
    /// Version 2 (the unified hierarchy), with files such as `cpu.max`.
    V2,
}

/// Returns the directories of this process's groups for a controller.
///
/// Each group's own directory is first, followed by its ancestors up to the mount point. The group
/// of the unified hierarchy is included for every controller. `cgroup` and `mountinfo` are the
/// texts of the files of those names in `/proc/self`. Lines that cannot be read are skipped.
pub fn directories(controller: &str, cgroup: &str, mountinfo: &str) -> Vec<(Version, PathBuf)> {
    let mounts: Vec<Mount> = mountinfo
        .lines()
        .filter_map(|line| Mount::read(controller, line))
        .collect();
    let mut directories = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let version = match controllers {
            "" => Version::V2,
            some if some.split(',').any(|name| name == controller) => Version::V1,
            _ => continue,
        };
        let Some(mount) = mounts.iter().find(|mount| mount.version == version) else {
            continue;
        };
        let levels = mount.directory_of(Path::new(path));
        let levels = levels
            .ancestors()
            .take_while(|level| level.starts_with(&mount.point));
        directories.extend(levels.map(|level| (version, level.to_owned())));
    }
    directories
}

/// Returns the value of one counter in a text of `name value` lines.
/// Such texts are `memory.events` and `/proc/vmstat`.
pub fn counter(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find_map(|(known, value)| (known == name).then(|| value.trim().parse().ok())?)
}

/// Mount of the unified hierarchy, or of the controller's v1 hierarchy.
struct Mount {
    version: Version,
    /// Path of the mounted group within the hierarchy.
    root: PathBuf,
    /// Mount point.
    point: PathBuf,
}

impl Mount {
    fn read(controller: &str, line: &str) -> Option<Self> {
        // `id parent major:minor root point options [optional…] - type source super-options`
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut filesystem = filesystem.split(' ');
        let version = match (filesystem.next()?, filesystem.nth(1)) {
            ("cgroup2", _) => Version::V2,
            ("cgroup", Some(options)) if options.split(',').any(|name| name == controller) => {
                Version::V1
            }
            _ => return None,
        };
        Some(Self {
            version,
            root: unescaped(root),
            point: unescaped(point),
        })
    }

    /// Returns the directory of the group with this path.
    /// It is the mount point if the group is outside of the mounted part.
    fn directory_of(&self, path: &Path) -> PathBuf {
        let mut directory = self.point.clone();
        let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
        // Part by part: joining an empty path would add a slash at the end.
        if let Ok(below) = path.strip_prefix(&self.root)
            && below.components().all(is_name)
        {
            directory.extend(below);
        }
        directory
    }
}

/// Replaces octal escapes such as `\040` with the characters.
fn unescaped(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|code| u8::from_str_radix(code, 8).ok());
        match code {
            Some(code) => {
                plain.push(char::from(code));
                plain += &part[3..];
            }
            None => {
                plain.push('\\');
                plain += part;
            }
        }
    }
    plain.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(cgroup: &str, mountinfo: &str) -> Vec<String> {
        let word = |(version, path): (Version, PathBuf)| format!("{version:?} {}", path.display());
        directories("cpu", cgroup, mountinfo)
            .into_iter()
            .map(word)
            .collect()
    }

    const UNIFIED: &str = "35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw";

    #[test]
    fn a_unified_group_and_its_ancestors_count() {
        assert_eq!(
            found("0::/user.slice/job 1.scope\n", UNIFIED),
            [
                "V2 /sys/fs/cgroup/user.slice/job 1.scope",
                "V2 /sys/fs/cgroup/user.slice",
                "V2 /sys/fs/cgroup",
            ]
        );
    }

    #[test]
    fn the_older_hierarchy_of_the_processor_counts_beside_it() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                      38 31 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        assert_eq!(
            found(
                "4:memory:/m\n3:cpuset:/s\n1:cpu,cpuacct:/docker/abc\n0::/x\n",
                mounts
            ),
            [
                "V1 /sys/fs/cgroup/cpu,cpuacct/docker/abc",
                "V1 /sys/fs/cgroup/cpu,cpuacct/docker",
                "V1 /sys/fs/cgroup/cpu,cpuacct",
                "V2 /sys/fs/cgroup/unified/x",
                "V2 /sys/fs/cgroup/unified",
            ]
        );
    }

    #[test]
    fn each_controller_has_its_own_older_hierarchy() {
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        assert_eq!(
            directories("memory", "4:memory:/m\n1:cpu:/c\n", mounts),
            [
                (Version::V1, "/sys/fs/cgroup/memory/m".into()),
                (Version::V1, "/sys/fs/cgroup/memory".into()),
            ]
        );
    }

    #[test]
    fn counters_are_found_by_their_whole_names() {
        let events = "low 0\noom 3\noom_kill 2\noom_group_kill 7\n";
        assert_eq!(counter(events, "oom_kill"), Some(2));
        assert_eq!(counter(events, "kill"), None);
        assert_eq!(counter("oom_kill many\n", "oom_kill"), None);
        assert_eq!(counter("", "oom_kill"), None);
    }

    #[test]
    fn in_a_container_the_mount_is_the_group() {
        let mounted = "35 25 0:30 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
        assert_eq!(
            found("0::/docker/abc/init\n", mounted),
            ["V2 /sys/fs/cgroup/init", "V2 /sys/fs/cgroup"]
        );
        assert_eq!(found("0::/other\n", mounted), ["V2 /sys/fs/cgroup"]);
        assert_eq!(found("0::/../sibling\n", UNIFIED), ["V2 /sys/fs/cgroup"]);
    }

    #[test]
    fn what_cannot_be_read_is_skipped() {
        assert!(found("0::/x", "").is_empty());
        assert!(found("nonsense\n1:cpu", UNIFIED).is_empty());
        assert_eq!(
            found("0::/", "1 2 0:3 / /a\\040b\\ rw - cgroup2 none rw"),
            ["V2 /a b\\"]
        );
    }
}
