//! The environment, the arguments and the console prefix of a worker.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::options::GroupSpec;
use super::types::{Round, WorkerRanks};
use crate::topology::VisibleLists;
use rdzv_core::env;
use rdzv_core::rank::{LocalRank, ranges};

/// Returns the variables that a worker gets besides the agent's.
///
/// The path of the error file is not included, because it depends on the log directory.
///
/// # Errors
///
/// Returns PyTorch's text if there are too few devices.
pub fn variables(
    spec: &GroupSpec,
    round: &Round,
    ranks: &WorkerRanks,
    restart_count: u32,
) -> Result<Vec<(&'static str, String)>, String> {
    let virtual_rank = spec.virtual_local_rank.as_ref();
    let shown_local_rank = virtual_rank.map_or(ranks.local_rank, |_| LocalRank(0));
    let use_agent_store = if round.master.hosted_by_agent {
        "True"
    } else {
        "False"
    };
    let nccl = spec.nccl_error_handling.as_deref().unwrap_or("1");
    let (identity, stop) = (&spec.identity, &spec.stop);
    let replaced: Vec<String> = round.replaced.iter().map(u32::to_string).collect();
    let replaced = replaced.join(",");
    let values: [(&'static str, &dyn Display); 19] = [
        (env::LOCAL_RANK, &shown_local_rank),
        (env::RANK, &ranks.rank),
        (env::GROUP_RANK, &round.group_rank),
        (env::ROLE_RANK, &ranks.role_rank),
        (env::ROLE_NAME, &identity.role),
        (env::LOCAL_WORLD_SIZE, &identity.local_world_size),
        (env::WORLD_SIZE, &ranks.world_size),
        (env::GROUP_WORLD_SIZE, &round.group_world_size),
        (env::ROLE_WORLD_SIZE, &ranks.role_world_size),
        (env::MASTER_ADDR, &round.master.addr),
        (env::MASTER_PORT, &round.master.port),
        (env::TORCHELASTIC_RESTART_COUNT, &restart_count),
        (env::TORCHELASTIC_MAX_RESTARTS, &spec.restarts.max_restarts),
        (env::TORCHELASTIC_RUN_ID, &identity.run_id),
        (env::TORCHELASTIC_USE_AGENT_STORE, &use_agent_store),
        (env::TORCHELASTIC_SIGNALS_TO_HANDLE, &stop.signals_text),
        (env::TORCH_NCCL_ASYNC_ERROR_HANDLING, &nccl),
        (env::RDZV_ROUND, &round.number),
        (env::RDZV_REPLACED, &replaced),
    ];
    let mut variables = Vec::from(values.map(|(name, value)| (name, value.to_string())));
    if let Some(devices) = virtual_rank {
        variables.extend(device_of(devices, ranks.local_rank)?);
    }
    Ok(variables)
}

/// Returns the one device that a worker sees with `--virtual-local-rank`.
/// The device is the entry of the list at the worker's local rank, or the local rank itself if
/// there is no list.
pub fn device_of(
    devices: &VisibleLists,
    local_rank: LocalRank,
) -> Result<Vec<(&'static str, String)>, String> {
    let hip = devices.hip.as_deref().filter(|list| !list.is_empty());
    let (source, list) = match (hip, devices.cuda.as_deref()) {
        (Some(list), _) => (env::HIP_VISIBLE_DEVICES, list),
        (None, Some(list)) => (env::CUDA_VISIBLE_DEVICES, list),
        (None, None) => return Ok(vec![(env::CUDA_VISIBLE_DEVICES, local_rank.to_string())]),
    };
    let device = list
        .split(',')
        .nth(local_rank.0 as usize)
        .ok_or_else(|| {
            format!("local_rank {local_rank} exceeds available GPUs in {source}={list}")
        })?
        .trim()
        .to_owned();
    let mut variables = vec![(env::CUDA_VISIBLE_DEVICES, device.clone())];
    if hip.is_some() {
        variables.push((env::HIP_VISIBLE_DEVICES, device));
    }
    Ok(variables)
}

/// Returns a worker's arguments with its local rank filled in.
/// `${local_rank}` and `$local_rank` become the real local rank, also with `--virtual-local-rank`.
/// `$$` becomes `$`; everything else is unchanged.
pub fn arguments(templates: &[OsString], local_rank: LocalRank) -> Vec<OsString> {
    let digits = local_rank.to_string();
    templates
        .iter()
        .map(|template| {
            let filled = substitute(template.as_bytes(), |name| {
                (name == b"local_rank").then_some(digits.as_bytes())
            });
            OsString::from_vec(filled)
        })
        .collect()
}

/// Returns the prefix of a console line that came from these workers.
/// Several workers share a line if they wrote the same text. The template may contain
/// `${role_name}`, `${local_rank}`, `${rank}` and `${hostname}`, which are replaced by the rules of
/// [`arguments`]. Several ranks are written as `0-3,5`.
pub fn line_prefix(template: &str, role: &str, workers: &[WorkerRanks], hostname: &str) -> String {
    let local_rank = ranges(workers.iter().map(|worker| worker.local_rank.0));
    let rank = ranges(workers.iter().map(|worker| worker.rank.0));
    let filled = substitute(template.as_bytes(), |name| match name {
        b"role_name" => Some(role.as_bytes()),
        b"local_rank" => Some(local_rank.as_bytes()),
        b"rank" => Some(rank.as_bytes()),
        b"hostname" => Some(hostname.as_bytes()),
        _ => None,
    });
    String::from_utf8_lossy(&filled).into_owned()
}

/// Replaces `$name` and `${name}` if `value` knows the name, and `$$` by `$`.
///
/// Names are ASCII letters, digits and `_`, and do not begin with a digit.
fn substitute<'v>(template: &[u8], value: impl Fn(&[u8]) -> Option<&'v [u8]>) -> Vec<u8> {
    let mut filled = Vec::with_capacity(template.len());
    let mut left = template;
    while let Some(dollar) = left.iter().position(|&byte| byte == b'$') {
        filled.extend_from_slice(&left[..dollar]);
        left = &left[dollar..];
        if left.starts_with(b"$$") {
            filled.push(b'$');
            left = &left[2..];
            continue;
        }
        let (name, length) = match left.get(1) {
            Some(b'{') => {
                let name = name_at(&left[2..]);
                let closed = left.get(2 + name.len()) == Some(&b'}');
                (if closed { name } else { b"" }, name.len() + 3)
            }
            _ => {
                let name = name_at(&left[1..]);
                (name, name.len() + 1)
            }
        };
        match value(name) {
            Some(text) => {
                filled.extend_from_slice(text);
                left = &left[length..];
            }
            None => {
                filled.push(b'$');
                left = &left[1..];
            }
        }
    }
    filled.extend_from_slice(left);
    filled
}

fn name_at(text: &[u8]) -> &[u8] {
    let length = text
        .iter()
        .enumerate()
        .take_while(|&(at, byte)| {
            byte.is_ascii_alphabetic() || *byte == b'_' || (at > 0 && byte.is_ascii_digit())
        })
        .count();
    &text[..length]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::group::{GroupIdentity, Master, RestartOptions};
    use rdzv_core::ident::RunId;
    use rdzv_core::rank::{Assignment, GroupRank};

    fn spec(virtual_local_rank: Option<VisibleLists>) -> GroupSpec {
        GroupSpec {
            identity: GroupIdentity {
                role: "trn".into(),
                run_id: RunId::new("jobX"),
                local_world_size: 2,
            },
            restarts: RestartOptions {
                max_restarts: 3,
                ..RestartOptions::default()
            },
            virtual_local_rank,
            ..GroupSpec::default()
        }
    }

    fn round() -> Round {
        Round {
            number: 4,
            group_rank: GroupRank(1),
            group_world_size: 2,
            replaced: vec![1, 2],
            master: Master {
                addr: "10.0.0.1".into(),
                port: 29500,
                hosted_by_agent: true,
            },
            losses_known_within: Duration::ZERO,
            answers_barrier: false,
        }
    }

    fn variables(spec: &GroupSpec, local_rank: usize) -> Result<Vec<String>, String> {
        let ranks = WorkerRanks::of_node(Assignment::from((1, 3, 0, 2)), 2)[local_rank];
        Ok(super::variables(spec, &round(), &ranks, 1)?
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect())
    }

    #[test]
    fn a_worker_gets_the_variables_of_the_contract() {
        assert_eq!(
            variables(&spec(None), 1).unwrap(),
            [
                "LOCAL_RANK=1",
                "RANK=2",
                "GROUP_RANK=1",
                "ROLE_RANK=1",
                "ROLE_NAME=trn",
                "LOCAL_WORLD_SIZE=2",
                "WORLD_SIZE=3",
                "GROUP_WORLD_SIZE=2",
                "ROLE_WORLD_SIZE=2",
                "MASTER_ADDR=10.0.0.1",
                "MASTER_PORT=29500",
                "TORCHELASTIC_RESTART_COUNT=1",
                "TORCHELASTIC_MAX_RESTARTS=3",
                "TORCHELASTIC_RUN_ID=jobX",
                "TORCHELASTIC_USE_AGENT_STORE=True",
                "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                "RDZV_ROUND=4",
                "RDZV_REPLACED=1,2",
            ]
        );
    }

    #[test]
    fn virtual_local_ranks_divide_the_devices() {
        let devices = |hip: Option<&str>, cuda: Option<&str>| {
            let list = VisibleLists {
                hip: hip.map(str::to_owned),
                cuda: cuda.map(str::to_owned),
            };
            let all = variables(&spec(Some(list)), 1)?;
            assert_eq!(all[0], "LOCAL_RANK=0");
            Ok::<_, String>(all[19..].join(" "))
        };
        assert_eq!(
            devices(None, Some("4, 5")).unwrap(),
            "CUDA_VISIBLE_DEVICES=5"
        );
        assert_eq!(devices(None, None).unwrap(), "CUDA_VISIBLE_DEVICES=1");
        assert_eq!(
            devices(Some("6,7"), Some("4,5")).unwrap(),
            "CUDA_VISIBLE_DEVICES=7 HIP_VISIBLE_DEVICES=7"
        );
        assert_eq!(
            devices(Some(""), Some("4,5")).unwrap(),
            "CUDA_VISIBLE_DEVICES=5"
        );
        assert_eq!(
            devices(None, Some("4")).unwrap_err(),
            "local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4"
        );
    }

    #[test]
    fn arguments_know_one_macro() {
        let cases = [
            ("${local_rank}", "7"),
            ("a$local_rank.b", "a7.b"),
            ("$local_rank_", "$local_rank_"),
            ("$$x", "$x"),
            ("$$local_rank", "$local_rank"),
            (
                "${foo} $foo ${ $ ${local_rank",
                "${foo} $foo ${ $ ${local_rank",
            ),
            ("${rank}", "${rank}"),
            ("100%$", "100%$"),
        ];
        for (template, expected) in cases {
            let filled = arguments(&[OsString::from(template)], LocalRank(7));
            assert_eq!(filled, [OsString::from(expected)]);
        }
    }

    #[test]
    fn arguments_may_be_any_bytes() {
        let template = OsString::from_vec(b"\xff$local_rank\xfe".to_vec());
        assert_eq!(
            arguments(&[template], LocalRank(1))[0].as_bytes(),
            b"\xff1\xfe"
        );
    }

    #[test]
    fn prefixes_know_four_macros() {
        let workers = WorkerRanks::of_node(Assignment::from((4, 8, 0, 8)), 3);
        let template = "<${role_name}/${local_rank}/$rank/${hostname}/${bogus}/$$> ";
        let prefix = |workers| line_prefix(template, "tr", workers, "node-a");
        assert_eq!(prefix(&workers[1..2]), "<tr/1/5/node-a/${bogus}/$> ");
        assert_eq!(prefix(&workers), "<tr/0-2/4-6/node-a/${bogus}/$> ");
    }
}
