//! Machines at a switch: network namespaces, with a cable each to a bridge that is in the hands of this process.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};

use crate::command::{line, output};

/// A namespace, held by a process that waits.
pub(super) struct Machine {
    holder: Child,
    /// Counted from 1.
    pub(super) number: usize,
}

impl Machine {
    pub(super) fn address(&self) -> String {
        address(self.number)
    }

    /// A command on this machine. It is the process itself, without one around it.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-n", "-t", &self.holder.id().to_string(), program]);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The address of a machine.
pub(super) fn address(number: usize) -> String {
    format!("10.9.2.{number}")
}

/// The address of this process, at the switch.
pub(super) const SWITCH: &str = "10.9.2.254";

/// The hardware address of a machine's end of its cable.
fn hardware(number: usize) -> String {
    format!("02:00:00:00:02:{number:02x}")
}

/// A hardware address that nobody has.
const NOWHERE: &str = "02:00:00:00:00:fe";

/// All machines of an experiment. This process has an address at the switch as well.
pub(super) struct Network {
    pub(super) machines: Vec<Machine>,
}

impl Network {
    pub(super) fn new(count: usize) -> anyhow::Result<Self> {
        ip("link set lo up")?;
        ip("link add sw0 type bridge")?;
        ip(&format!("addr add {SWITCH}/24 dev sw0"))?;
        ip("link set sw0 up")?;
        let mut machines = Vec::new();
        for number in 1..=count {
            let mut holder = Command::new("unshare");
            let script = "ip link set lo up && echo up && exec sleep infinity";
            holder.args(["-n", "sh", "-c", script]);
            let mut holder = holder.stdout(Stdio::piped()).spawn()?;
            let mut up = [0; 3];
            let mut said = holder.stdout.take().context("it is piped")?;
            let machine = Machine { holder, number };
            said.read_exact(&mut up)
                .context("a network namespace could not be made")?;
            ip(&format!(
                "link add port{number} type veth peer name cable address {} netns {}",
                hardware(number),
                machine.holder.id()
            ))?;
            ip(&format!("link set port{number} master sw0 up"))?;
            machine.ip(&format!("addr add {}/24 dev cable", machine.address()))?;
            machine.ip("link set cable up")?;
            machines.push(machine);
        }
        Ok(Self { machines })
    }

    pub(super) fn machine(&self, number: usize) -> &Machine {
        &self.machines[number - 1]
    }

    /// Cuts the cable of a machine, or mends it.
    pub(super) fn set_cable(&self, number: usize, is_up: bool) -> anyhow::Result<()> {
        let state = if is_up { "up" } else { "down" };
        ip(&format!("link set port{number} {state}"))
    }
}

impl Network {
    /// Has the machines reach one another, from one to the other, only as this says. Whatever else is sent goes nowhere, and
    /// nobody is told.
    pub(super) fn set_paths(&self, reaches: impl Fn(usize, usize) -> bool) -> anyhow::Result<()> {
        for from in &self.machines {
            let others = self.machines.iter().filter(|to| to.number != from.number);
            let entries = others.map(|to| {
                let at = match reaches(from.number, to.number) {
                    true => hardware(to.number),
                    false => NOWHERE.to_owned(),
                };
                format!(
                    "neigh replace {} lladdr {at} dev cable nud permanent\n",
                    to.address()
                )
            });
            from.ip_batch(&entries.collect::<String>())?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The ports go with their namespaces, as soon as nobody is in those any more.
        let _ = ip("link del sw0");
        for number in 1..=self.machines.len() {
            let _ = ip(&format!("link del port{number}"));
        }
    }
}

impl Machine {
    pub(super) fn pid(&self) -> u32 {
        self.holder.id()
    }

    fn ip(&self, words: &str) -> anyhow::Result<()> {
        let mut command = self.command("ip");
        output(command.args(words.split(' '))).map(drop)
    }

    /// The same with many lines at once.
    fn ip_batch(&self, lines: &str) -> anyhow::Result<()> {
        let mut command = self.command("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped());
        let mut child = command.spawn().context("failed to start `ip`")?;
        let mut stdin = child.stdin.take().context("it is piped")?;
        stdin.write_all(lines.as_bytes())?;
        drop(stdin);
        let status = child.wait()?;
        ensure!(status.success(), "`ip -batch` ended with {status}: {lines}");
        Ok(())
    }
}

fn ip(words: &str) -> anyhow::Result<()> {
    output(Command::new("ip").args(words.split(' '))).map(drop)
}

/// Goes on as this program with these words, as the only one in namespaces of its own. Whatever happens to it, the kernel ends
/// everything that it has started.
pub(super) fn enclose(command: &Command) -> anyhow::Error {
    let mut enclosed = Command::new("unshare");
    enclosed
        .args(["-r", "-n", "-p", "-m", "--fork", "--kill-child"])
        // The first process of the namespace collects orphans, and no signal from inside ends it.
        .args(["--mount-proc", "sh", "-c", "\"$@\"; exit $?", "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    let error = enclosed.exec();
    anyhow::Error::from(error).context(format!("failed to start `{}`", line(&enclosed)))
}

/// Fails unless this process is in namespaces of its own.
pub(super) fn ensure_enclosed() -> anyhow::Result<()> {
    let links = output(Command::new("ip").args(["-o", "link"]))?;
    ensure!(
        links.lines().count() == 1,
        "this part runs in a network namespace of its own only"
    );
    Ok(())
}
