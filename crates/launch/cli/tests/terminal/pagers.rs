//! Tests under a pager, a terminal multiplexer and an SSH connection.

use std::path::Path;

use crate::job::{has, shell};

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

#[test]
fn a_pager_reads_the_lines_of_the_workers() {
    if !is_installed("less") {
        return eprintln!("NOT TESTED: a pager, because there is no less");
    }
    let run = shell(&[
        "-c",
        "$RDZV run --nproc-per-node 2 --no-python sh -c 'seq -f \"line %.0f of $RANK\" 1 2000' | less",
    ]);
    let run = run.start();
    run.wait_for("the first page", |screen| {
        // If the run has ended already, its last line may have moved the other lines up.
        screen.iter().filter(|row| row.contains("line ")).count() >= 20
    });
    run.press(b"G");
    run.wait_for_text("line 2000 of ");
    run.press(b"q");
    run.lines_of_success();
}

#[test]
fn a_multiplexer_shows_the_view() {
    if !is_installed("tmux") {
        return eprintln!("NOT TESTED: a multiplexer, because there is no tmux");
    }
    let script = "
cat > job.sh <<'END'
$RDZV run --nproc-per-node 2 --no-python sh -c \
    'printf \"\\033[31mred\\033[0m \\303\\244 %s\\n\" $RANK; mkfifo fifo$RANK; read go < fifo$RANK'
echo ended $?
END
exec tmux -L ./socket -f /dev/null new-session \"sh job.sh; read end\"";
    let mut run = shell(&["-c", script]).env("TMUX_TMPDIR", "/tmp").start();
    run.wait_for("the view within tmux", |screen| {
        has(screen, "[0] red \u{e4} 0")
            && has(screen, "[1] red \u{e4} 1")
            && screen
                .iter()
                .any(|row| row.starts_with("running \u{b7} 2 workers"))
    });
    for rank in ["fifo0", "fifo1"] {
        std::fs::write(run.path(rank), "go\n").unwrap();
    }
    let screen = run.wait_for_text("ended 0");
    assert!(
        !screen.iter().any(|row| row.starts_with("running")),
        "{screen:?}"
    );
    run.press(b"\r");
    assert!(run.wait().success());
}

#[test]
fn a_terminal_of_another_machine_shows_the_view() {
    let daemon = Path::new("/usr/sbin/sshd");
    // As root, sshd needs a folder that the system creates when it starts the sshd service.
    let is_ready = !rustix::process::geteuid().is_root() || Path::new("/run/sshd").exists();
    if !daemon.exists() || !is_installed("ssh") || !is_ready {
        return eprintln!("NOT TESTED: a connection to another machine, because there is no sshd");
    }
    let port = rdzv_testing::free_port();
    let script = format!(
        "
set -e
ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f key
cp key.pub keys; chmod 600 keys
$SSHD -D -f /dev/null -p {port} -o ListenAddress=127.0.0.1 -o HostKey=$PWD/host -o PidFile=none \
    -o AuthorizedKeysFile=$PWD/keys -o StrictModes=no -o UsePAM=no -E log &
until grep -q listening log; do sleep 0.01; done
ssh -tt -F /dev/null -i key -p {port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=known 127.0.0.1 \
    \"cd $PWD; stty size; $RDZV run --nproc-per-node 2 --no-python sh -c \
    'echo on \\$RANK; touch on\\$RANK; exec sleep 1000'\" || echo ssh ended $?
kill %1"
    );
    let run = shell(&["-c", &script])
        .env("SSHD", "/usr/sbin/sshd")
        .start();
    run.wait_for_file("on0");
    run.wait_for_file("on1");
    run.wait_for("the view over ssh", |screen| {
        has(screen, "24 80")
            && has(screen, "[0] on 0")
            && screen
                .last()
                .is_some_and(|row| row.starts_with("running \u{b7} 2 workers"))
    });
    run.press(b"\x03");
    run.wait_for_text("ssh ended");
    let lines = run.lines_of_success();
    assert!(lines.join("\n").contains("stopped by Ctrl-C"), "{lines:?}");
}
