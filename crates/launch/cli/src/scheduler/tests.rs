use super::*;

/// Variables of the task on `n2`, in a step of three nodes.
const STEP: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "55"),
    ("SLURM_JOB_NUM_NODES", "4"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_PROCID", "1"),
    ("SLURM_STEP_NODELIST", "n[1-3]"),
    ("SLURM_STEP_NUM_NODES", "3"),
    ("SLURM_STEP_TASKS_PER_NODE", "1(x3)"),
    ("SLURMD_NODENAME", "n2"),
    ("SLURM_CPUS_ON_NODE", "4"),
];

/// Resolves the step with these variables; an empty value removes a variable.
fn asked(
    scheduler: &str,
    others: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Scheduled, Refusal> {
    let mut variables: BTreeMap<OsString, OsString> = BTreeMap::new();
    for (name, value) in STEP.iter().chain(others) {
        match *value {
            "" => variables.remove(OsStr::new(name)),
            value => variables.insert(name.into(), value.into()),
        };
    }
    scheduled(scheduler, &variables, |id| {
        let found = flags.iter().find(|(flag, _)| *flag == id);
        found.map(|(_, text)| (*text).to_owned())
    })
}

fn of(others: &[(&str, &str)], flags: &[(&str, &str)]) -> Scheduled {
    asked("auto", others, flags).unwrap()
}

fn refused(others: &[(&str, &str)]) -> String {
    asked("auto", others, &[]).unwrap_err().to_string()
}

fn value<'s>(scheduled: &'s Scheduled, id: &str) -> Option<&'s str> {
    let value = scheduled.values.iter().find(|value| value.id == id);
    value.map(|value| value.value.as_str())
}

#[test]
fn a_step_of_several_nodes_needs_no_flags() {
    let found = of(&[], &[]);
    assert_eq!(
        found.job.as_deref(),
        Some("Slurm job 55, step 2, task 1 of 3, restart 0")
    );
    assert_eq!(value(&found, "nnodes"), Some("3"));
    assert_eq!(value(&found, "rdzv_backend"), Some("c10d"));
    assert_eq!(value(&found, "rdzv_id"), Some("slurm-55.2.0"));
    assert_eq!(
        value(&found, "rdzv_conf"),
        Some("last_call_timeout=2,coordinator_timeout=5,is_host=0")
    );
    assert_eq!(value(&found, "nproc_per_node"), None);
    assert_eq!(found.warnings, Vec::<String>::new());
    let (host, port) = value(&found, "rdzv_endpoint")
        .unwrap()
        .split_once(':')
        .unwrap();
    assert_eq!(host, "n1");
    assert!(PORTS.contains(&port.parse().unwrap()), "{port}");
    // All nodes compute the same endpoint, and each restart of the job has another one.
    let first = of(&[("SLURMD_NODENAME", "n1"), ("SLURM_PROCID", "0")], &[]);
    assert_eq!(
        value(&first, "rdzv_endpoint"),
        value(&found, "rdzv_endpoint")
    );
    assert_eq!(
        value(&first, "rdzv_conf"),
        Some("last_call_timeout=2,coordinator_timeout=5,is_host=1")
    );
    let again = of(&[("SLURM_RESTART_COUNT", "1")], &[]);
    assert_ne!(
        value(&again, "rdzv_endpoint"),
        value(&found, "rdzv_endpoint")
    );
    assert_eq!(value(&again, "rdzv_id"), Some("slurm-55.2.1"));
    let array = [("SLURM_ARRAY_JOB_ID", "50"), ("SLURM_ARRAY_TASK_ID", "7")];
    assert_eq!(value(&of(&array, &[]), "rdzv_id"), Some("slurm-50_7.2.0"));
}

#[test]
fn flags_win_and_how_the_nodes_meet_is_one_matter() {
    let id = of(&[], &[("rdzv_id", "mine")]);
    assert_eq!(
        (value(&id, "rdzv_id"), value(&id, "nnodes")),
        (None, Some("3"))
    );
    let nnodes = of(&[], &[("nnodes", "3")]);
    assert_eq!(
        (nnodes.values.len(), nnodes.not_taken),
        (0, "flags select the rendezvous")
    );
    let endpoint = of(&[], &[("rdzv_endpoint", "n1:1"), ("nnodes", "3")]);
    assert_eq!(value(&endpoint, "rdzv_id"), Some("slurm-55.2.0"));
    assert_eq!(endpoint.values.len(), 1);
    let alone = of(&[], &[("standalone", "yes")]);
    assert_eq!(alone.values, []);
}

#[test]
fn nodes_in_reserve_make_voters_of_the_first_three() {
    let endpoint = |flags: &[(&str, &str)]| {
        let found = of(&[], flags);
        let text = value(&found, "rdzv_endpoint").unwrap().to_owned();
        let (first, rest) = text.split_once(':').unwrap();
        let others = rest.split_once(',').map(|(_, others)| others.to_owned());
        let options = value(&found, "rdzv_conf").map(str::to_owned);
        (first.to_owned(), others, options)
    };
    assert_eq!(value(&of(&[], &[("spares", "1")]), "nnodes"), Some("2"));
    let several = Some("n2,n3".to_owned());
    let options = Some("last_call_timeout=2,coordinator_timeout=5".to_owned());
    let first = "n1".to_owned();
    assert_eq!(
        endpoint(&[("spares", "1")]),
        (first, several.clone(), options)
    );
    // A node whose check fails would never become a voter.
    assert_eq!(endpoint(&[("spares", "1"), ("node_check", "true")]).1, None);
    assert_eq!(endpoint(&[("spares", "0")]).1, None);
    // With one flag about the rendezvous, all its settings are the user's.
    for (settings, others) in [
        ("voters=3", several),
        ("join_timeout=9, voters=1", None),
        ("voters=0", None),
        ("voters=5", None),
    ] {
        let flags = [("spares", "1"), ("rdzv_conf", settings)];
        assert_eq!(
            endpoint(&flags),
            ("n1".to_owned(), others, None),
            "{settings}"
        );
    }
}

#[test]
fn agents_do_not_wait_for_a_task_that_nothing_starts_again() {
    let meets = [("nnodes", "2:3"), ("rdzv_endpoint", "n1:1")];
    let c10d = [meets[0], meets[1], ("rdzv_backend", "c10d")];
    let found = of(&[], &c10d);
    assert_eq!(value(&found, "rdzv_conf"), Some("coordinator_timeout=5"));
    let own = [
        c10d[0],
        c10d[1],
        c10d[2],
        ("rdzv_conf", "coordinator_timeout=60"),
    ];
    assert_eq!(value(&of(&[], &own), "rdzv_conf"), None);
    assert_eq!(value(&of(&[], &meets), "rdzv_conf"), None);
}

#[test]
fn a_number_of_nodes_that_the_step_does_not_have_is_warned_of() {
    for (nnodes, warning) in [
        ("3", None),
        ("1:3", None),
        ("2:5", None),
        (
            "2",
            Some("the other nodes have no workers until a node is lost"),
        ),
        (
            "4",
            Some("the job waits for nodes that are not in the step"),
        ),
    ] {
        let found = of(&[], &[("nnodes", nnodes), ("rdzv_endpoint", "n1:1")]);
        match warning {
            None => assert_eq!(found.warnings, Vec::<String>::new(), "{nnodes}"),
            Some(text) => assert!(found.warnings[0].contains(text), "{:?}", found.warnings),
        }
    }
    let found = of(&[], &[("rdzv_endpoint", "n1:1")]);
    let text =
        "without --nnodes, the job has one of the 3 nodes of the step\nhelp: pass --nnodes 3";
    assert!(found.warnings[0].starts_with(text), "{:?}", found.warnings);
    assert!(of(&[], &[("standalone", "yes")]).warnings.is_empty());
}

#[test]
fn spare_nodes_leave_a_node_for_the_job() {
    let error = asked("auto", &[], &[("spares", "3")]).unwrap_err();
    let text = "--spares 3 leaves no node for the job: Slurm step 2 of job 55 has 3 nodes";
    assert_eq!(error.to_string(), text);
    let one = [
        ("SLURM_STEP_NODELIST", "n2"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ];
    let error = asked("auto", &one, &[("spares", "1")]).unwrap_err();
    assert!(error.to_string().ends_with("job 55 has 1 node"), "{error}");
}

#[test]
fn several_tasks_on_a_node_are_refused() {
    for tasks in ["2(x3)", "1,2(x2)", "2"] {
        let text = refused(&[("SLURM_STEP_TASKS_PER_NODE", tasks)]);
        assert!(text.contains("several tasks on a node"), "{text}");
        assert!(text.contains("--ntasks-per-node=1"), "{text}");
    }
    assert!(
        of(&[("SLURM_STEP_TASKS_PER_NODE", "1,1(x2)")], &[])
            .job
            .is_some()
    );
}

#[test]
fn workers_are_as_many_as_accelerators() {
    let workers =
        |others: &[(&str, &str)]| value(&of(others, &[]), "nproc_per_node").map(str::to_owned);
    assert_eq!(
        workers(&[("SLURM_GPUS_ON_NODE", "8")]).as_deref(),
        Some("8")
    );
    let two = [("SLURM_GPUS_ON_NODE", "8"), ("CUDA_VISIBLE_DEVICES", "0,3")];
    assert_eq!(workers(&two).as_deref(), Some("2"));
    assert_eq!(workers(&[("SLURM_GPUS_ON_NODE", "0")]), None);
    let given = of(&[("SLURM_GPUS_ON_NODE", "8")], &[("nproc_per_node", "4")]);
    assert_eq!(value(&given, "nproc_per_node"), None);
}

#[test]
fn outside_of_a_step_nothing_is_taken() {
    // In a batch script and an interactive step, newer versions of Slurm set the step to a word.
    for step in ["", "batch", "interactive"] {
        let found = of(&[("SLURM_STEP_ID", step)], &[]);
        assert_eq!((found.job, found.values), (None, vec![]));
        assert!(found.warnings[0].contains("run it with srun"), "{step}");
        let chosen = of(&[("SLURM_STEP_ID", step)], &[("standalone", "yes")]);
        assert_eq!(chosen, Scheduled::default());
    }
    for others in [
        // In order: another host, a worker, and again a worker.
        ("SLURMD_NODENAME", "login"),
        ("LOCAL_RANK", "0"),
        ("TORCHELASTIC_RUN_ID", "x"),
    ] {
        assert_eq!(of(&[others], &[]).values, [], "{others:?}");
    }
    assert_eq!(asked("none", &[], &[]), Ok(Scheduled::default()));
    let text = asked("slurm", &[("SLURM_STEP_ID", "")], &[]).unwrap_err();
    assert!(
        text.to_string()
            .contains("this process is not in a step of a Slurm job")
    );
    let one = [("SLURM_STEP_NODELIST", "n2"), ("SLURM_STEP_NUM_NODES", "1")];
    let one = of(
        &[&one[..], &[("SLURM_STEP_TASKS_PER_NODE", "1")]].concat(),
        &[],
    );
    assert_eq!(one.values, []);
}

#[test]
fn values_that_slurm_does_not_write_are_refused_with_a_sentence() {
    for (name, value, reason) in [
        ("SLURM_PROCID", "-1", "it is not a number"),
        ("SLURM_PROCID", "1e3", "it is not a number"),
        ("SLURM_JOB_ID", "$(id)", "it is not a number"),
        ("SLURM_JOB_ID", "99999999999999999999", "it is not a number"),
        (
            "SLURM_STEP_NUM_NODES",
            "2",
            "SLURM_STEP_NODELIST=n[1-3] names 3 nodes",
        ),
        (
            "SLURM_STEP_NODELIST",
            "n[1-3",
            "it has an opening bracket without a closing bracket",
        ),
        (
            "SLURM_STEP_NODELIST",
            "n1;reboot",
            "';' is not allowed in a host name",
        ),
        (
            "SLURM_STEP_NODELIST",
            "n[1-999999999]",
            "it contains more than 65536 hosts",
        ),
        (
            "SLURM_STEP_TASKS_PER_NODE",
            "x(1)",
            "it does not contain numbers of tasks",
        ),
        ("SLURM_GPUS_ON_NODE", "many", "it is not a number"),
    ] {
        let text = refused(&[(name, value)]);
        assert!(
            text.starts_with(&format!("{name} has the value {value:?}")),
            "{text}"
        );
        assert!(text.contains(reason), "{text}");
        assert!(text.contains("--scheduler none"), "{text}");
    }
    // Flags need nothing from a broken step, unless the step was requested.
    let (broken, flags) = ([("SLURM_PROCID", "-1")], [("standalone", "true")]);
    let warned = of(&broken, &flags);
    assert_eq!(warned.values, []);
    assert!(warned.warnings[0].starts_with("SLURM_PROCID has the value \"-1\""));
    asked("slurm", &broken, &flags).unwrap_err();
    let workers = [("nproc_per_node", "2")];
    of(&[("SLURM_GPUS_ON_NODE", "many")], &workers);
    let missing = refused(&[("SLURMD_NODENAME", "")]);
    assert!(
        missing.starts_with("SLURMD_NODENAME, which Slurm sets in every step, is missing"),
        "{missing}"
    );
}

#[test]
fn the_shutdown_timeout_ends_before_slurm_kills() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slurm.conf");
    std::fs::write(&path, "ClusterName=a\nKillWait=20\n").unwrap();
    let path = path.to_str().unwrap();
    let found = of(&[("SLURM_CONF", path)], &[]);
    assert_eq!(
        found.longest_shutdown_timeout,
        Some(Duration::from_secs(18))
    );
    // Slurm kills a step of one node too.
    let alone = [
        ("SLURM_CONF", path),
        ("SLURM_STEP_NODELIST", "n2"),
        ("SLURM_STEP_NUM_NODES", "1"),
    ];
    assert_eq!(
        of(&alone, &[]).longest_shutdown_timeout,
        found.longest_shutdown_timeout
    );
    assert_eq!(
        of(&[("SLURM_CONF", "/nowhere")], &[]).longest_shutdown_timeout,
        None
    );
    let none = asked("none", &[("SLURM_CONF", path)], &[]).unwrap();
    assert_eq!(none.longest_shutdown_timeout, None);
}
