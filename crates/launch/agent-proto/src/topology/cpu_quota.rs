//! Number of processors that a control group's limit allows.
//!
//! A group can use its quota of processor time in each period, on any processors. If a container
//! may use the time of two processors on a machine with 64, two workers are right. torchrun counts
//! 64.

/// Processor time per period, both in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Processor time that may be used per period.
    pub quota: u64,
    /// Length of a period; never 0.
    pub period: u64,
}

impl Quota {
    /// Parses `cpu.max` (cgroup v2), such as `200000 100000`.
    /// `None` if there is no limit (`max 100000`), or if the text cannot be read.
    pub fn from_cpu_max(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let quota = words.next()?.parse().ok()?;
        let period = words
            .next()
            .map_or(Some(100_000), |word| word.parse().ok())?;
        Self::new(quota, period)
    }

    /// Parses `cpu.cfs_quota_us` and `cpu.cfs_period_us` (cgroup v1).
    /// `None` if there is no limit (a quota of -1), or if a text cannot be read.
    pub fn from_cfs(quota: &str, period: &str) -> Option<Self> {
        Self::new(quota.trim().parse().ok()?, period.trim().parse().ok()?)
    }

    fn new(quota: u64, period: u64) -> Option<Self> {
        (quota > 0 && period > 0).then_some(Self { quota, period })
    }

    /// Returns the quota as a number of processors, rounded up.
    /// A worker with half a processor is slow, but a quota of one and a half serves two workers.
    pub fn processors(self) -> u32 {
        u32::try_from(self.quota.div_ceil(self.period)).unwrap_or(u32::MAX)
    }
}

/// A limit of a control group on processor time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuLimit {
    /// The limit.
    pub quota: Quota,
    /// Path of the file with the limit.
    pub file: String,
}

impl CpuLimit {
    /// Returns the tightest limit, or the first of equal ones.
    pub fn tightest(limits: impl IntoIterator<Item = Self>) -> Option<Self> {
        limits.into_iter().reduce(|least, other| {
            let product = |quota: Quota, of: Quota| u128::from(quota.quota) * u128::from(of.period);
            let smaller = product(other.quota, least.quota) < product(least.quota, other.quota);
            if smaller { other } else { least }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_rounded_up_to_processors() {
        let v2 = |text| Quota::from_cpu_max(text).map(Quota::processors);
        assert_eq!(v2("200000 100000\n"), Some(2));
        assert_eq!(v2("150000 100000"), Some(2));
        assert_eq!(v2("1000 100000"), Some(1));
        assert_eq!(v2("50000"), Some(1));
        for unlimited in ["max 100000", "", "x y", "100000 0", "0 100000"] {
            assert_eq!(v2(unlimited), None, "{unlimited:?}");
        }
        let v1 = |quota, period| Quota::from_cfs(quota, period).map(Quota::processors);
        assert_eq!(v1("350000\n", "100000\n"), Some(4));
        assert_eq!(v1("-1\n", "100000\n"), None);
    }

    #[test]
    fn the_tightest_group_counts() {
        let limit = |quota, period, file: &str| CpuLimit {
            quota: Quota { quota, period },
            file: file.to_owned(),
        };
        let limits = [
            limit(400, 100, "own"),
            limit(30, 10, "parent"),
            limit(3, 1, "root"),
        ];
        assert_eq!(CpuLimit::tightest(limits).unwrap().file, "parent");
        assert_eq!(CpuLimit::tightest([]), None);
    }
}
