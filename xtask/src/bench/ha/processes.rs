//! The processes of a job, each on its machine.

use std::fs::{File, OpenOptions};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use super::job::{Job, PORT};
use super::network::address;
use super::plan::{Place, Workers};

impl Job<'_> {
    pub(super) fn start_store(&mut self, flags: &[&str]) -> anyhow::Result<()> {
        let number = self.store_machine();
        let mut command = self.command(number)?;
        command.arg("store");
        match self.plan.place {
            Place::StoreAmong(_) => command.args(["--join", &self.endpoint()]),
            _ => command.args(["--host", &address(number), "--port", &PORT.to_string()]),
        };
        command
            .args(["--restarts", &self.plan.agent_restarts.to_string()])
            .args(flags);
        self.store = Some(command.spawn().context("failed to start the store")?);
        Ok(())
    }

    /// Starts the node of a machine, at first or again, always with the same line.
    pub(super) fn start_node(&mut self, number: usize) -> anyhow::Result<()> {
        let plan = &self.plan;
        let mut command = self.command(number)?;
        command.args(["run", "--nproc-per-node", "1", "--rdzv-id", "job"]);
        command.args(["--nnodes", plan.nnodes, "--rdzv-backend", "c10d"]);
        command.args(["--rdzv-endpoint", &self.endpoint()]);
        command.args(["--local-addr", &address(number)]);
        let mut conf: Vec<&str> = plan.conf.split(',').filter(|it| !it.is_empty()).collect();
        if plan.place == Place::First {
            conf.push("voters=1");
        }
        if !conf.is_empty() {
            command.args(["--rdzv-conf", &conf.join(",")]);
        }
        command.args(["--agent-restarts", &plan.agent_restarts.to_string()]);
        command.args(["--max-restarts", &plan.max_restarts.to_string()]);
        command.arg("--events-file").arg(self.events_file(number));
        command.arg("--no-python").arg(&self.tools.python);
        self.add_worker(&mut command);
        let node = command.spawn().context("failed to start a node")?;
        self.nodes[number - 1] = Some(node);
        Ok(())
    }

    /// Starts an agent of torchrun on a machine beside those of the nodes, with a worker that leaves no record.
    pub(super) fn start_torchrun(&self, number: usize) -> anyhow::Result<Child> {
        let plan = &self.plan;
        let python = self.tools.python.to_string_lossy();
        let mut command = self.network.machine(number).command(&python);
        self.prepare(&mut command, number)?;
        command.args(["-m", "torch.distributed.run", "--nproc-per-node", "1"]);
        command.args(["--nnodes", plan.nnodes, "--rdzv-id", "job"]);
        command.args([
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            &self.endpoint(),
        ]);
        command.args(["--local-addr", &address(number), "--max-restarts", "100"]);
        command.args(["--rdzv-conf", &format!("{},is_host=false", plan.conf)]);
        command.arg(&self.tools.worker).arg("silent");
        command.arg(self.folder.path()).arg("20");
        command.spawn().context("failed to start torchrun")
    }

    fn add_worker(&self, command: &mut Command) {
        command
            .arg(&self.tools.worker)
            .arg(match self.plan.workers {
                Workers::Ddp => "ddp",
                Workers::Plain => "plain",
            })
            .arg(self.folder.path())
            .arg(self.plan.pace.to_string());
        if let Some(step) = self.plan.last_step {
            command.env("LAST_STEP", step.to_string());
        }
    }

    /// `rdzv` on a machine.
    fn command(&self, number: usize) -> anyhow::Result<Command> {
        let rdzv = self.tools.rdzv.to_string_lossy();
        let mut command = self.network.machine(number).command(&rdzv);
        self.prepare(&mut command, number)?;
        Ok(command)
    }

    /// Has it write to the console of its machine.
    fn prepare(&self, command: &mut Command, number: usize) -> anyhow::Result<()> {
        let console = self.console_file(number);
        let console: File = OpenOptions::new().create(true).append(true).open(console)?;
        command
            .env("GLOO_SOCKET_IFNAME", "cable")
            .env("MACHINE", number.to_string())
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(console.try_clone()?)
            .stderr(console);
        Ok(())
    }
}
