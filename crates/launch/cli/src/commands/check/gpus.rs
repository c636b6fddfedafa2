//! Parser of the output of nvidia-smi about the devices of a node. Pure.

use crate::launch::grouped;

/// Returns the problems of `gpus` devices.
///
/// `printed` is the output of nvidia-smi, with lines `INDEX, UNCORRECTED ERRORS`.
pub(super) fn gpu_problems(printed: &str, gpus: usize) -> Vec<String> {
    let lines: Vec<&str> = printed
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let mut problems = Vec::new();
    let known = lines.iter().filter(|line| line.contains(',')).count();
    if known < gpus {
        problems.push(format!("nvidia-smi reports {known} of {gpus} GPUs"));
    }
    for line in lines {
        let Some((index, errors)) = line.split_once(',') else {
            problems.push(format!("nvidia-smi: {}", line.trim()));
            continue;
        };
        let (index, errors) = (index.trim(), errors.trim());
        match errors.parse::<u64>() {
            Ok(0) => {}
            Ok(count) => problems.push(format!("GPU {index}: {count} uncorrected memory errors")),
            // The device has no such counter.
            Err(_) if errors.contains("N/A") || errors.contains("Not Supported") => {}
            Err(_) => problems.push(format!("GPU {index}: {errors}")),
        }
    }
    problems
}

/// Returns the names, the driver and the peer access of the devices.
///
/// `named` has a line `NAME, DRIVER` for each device; `matrix` is the peer access of all pairs.
pub(super) fn described(named: &str, matrix: &str) -> String {
    let lines = named.lines().filter_map(|line| line.rsplit_once(','));
    let lines: Vec<_> = lines
        .map(|(name, driver)| (name.trim(), driver.trim()))
        .collect();
    let Some((_, driver)) = lines.first() else {
        return String::new();
    };
    let rows = matrix
        .lines()
        .filter(|line| line.trim_start().starts_with("GPU"));
    let pairs = rows.flat_map(|row| row.split_whitespace().skip(1));
    let pairs = pairs.filter(|pair| !pair.starts_with("GPU") && *pair != "X");
    let (mut all, mut open) = (0, 0);
    for pair in pairs {
        all += 1;
        open += usize::from(pair == "OK");
    }
    let peers = match (all, open) {
        (0, _) => "no peer access reported".to_owned(),
        (all, open) if all == open => "peer access between all".to_owned(),
        (all, open) => format!("peer access between {open} of {all} pairs"),
    };
    let names = grouped(lines.iter().map(|(name, _)| (*name).to_owned()));
    format!("{names}, driver {driver}, {peers}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_with_their_driver_and_peer_access() {
        let named = "NVIDIA H100, 570.1\nNVIDIA H100, 570.1\n";
        let matrix = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tNS\tX\t\n\nLegend:\n  X = Self\n";
        assert_eq!(
            described(named, matrix),
            "2 x NVIDIA H100, driver 570.1, peer access between 1 of 2 pairs"
        );
        let all = matrix.replace("NS", "OK");
        assert!(described(named, &all).ends_with("peer access between all"));
        assert_eq!(
            described("NVIDIA H100, 570.1", ""),
            "1 x NVIDIA H100, driver 570.1, no peer access reported"
        );
        assert_eq!(described("", ""), "");
    }

    #[test]
    fn devices_that_are_missing_or_have_errors_are_problems() {
        assert!(gpu_problems("0, 0\n1, [N/A]\n", 2).is_empty());
        assert_eq!(
            gpu_problems(
                "0, 3\nUnable to determine the device handle\n2, [Unknown Error]\n",
                3
            ),
            [
                "nvidia-smi reports 2 of 3 GPUs",
                "GPU 0: 3 uncorrected memory errors",
                "nvidia-smi: Unable to determine the device handle",
                "GPU 2: [Unknown Error]",
            ]
        );
    }
}
