//! Parser of the output of nvidia-smi about the devices of a node. Pure.

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

#[cfg(test)]
mod tests {
    use super::*;

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
