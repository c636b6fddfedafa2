//! Tests of a job on two nodes, each with a separate terminal.

use std::fs;

use crate::job::{Running, has, run_shell};

fn start(endpoint: &str, script: &str, (columns, rows): (u16, u16)) -> Running {
    let flags = format!(
        "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id job --rdzv-endpoint {endpoint} \
         --local-addr 127.0.0.1"
    );
    run_shell(&*flags, script).start_on(columns, rows)
}

#[test]
fn lines_and_bars_of_several_nodes_have_the_name_of_the_node() {
    let node = rustix::system::uname();
    let node = node.nodename().to_string_lossy();
    let node = node.split('.').next().unwrap();
    let script = "
echo line of $RANK
mkfifo fifo$RANK
for percent in 1 2 3; do printf '\\r%3d%%|bar of %s|' $percent $RANK >&2; done
touch on$RANK
read go < fifo$RANK
printf '\\n' >&2";
    for size in [(80, 24), (120, 40)] {
        let endpoint = format!("127.0.0.1:{}", rdzv_testing::free_port());
        let nodes = [(), ()].map(|()| start(&endpoint, script, size));
        let mut ranks = Vec::new();
        for run in &nodes {
            let screen = run.wait_for("two lines, two bars and a status row", |screen| {
                screen.len() >= 5
                    && screen
                        .last()
                        .is_some_and(|row| row.starts_with("running \u{b7} 4 workers on 2 nodes"))
                    && screen
                        .iter()
                        .filter(|row| row.contains("  3%|bar of "))
                        .count()
                        == 2
            });
            let own: Vec<u32> = (0..4)
                .filter(|rank| has(&screen, &format!("[{node} {rank}]   3%|bar of {rank}|")))
                .collect();
            let lines = own
                .iter()
                .filter(|rank| has(&screen, &format!("[{node} {rank}] line of {rank}")));
            assert_eq!((own.len(), lines.count()), (2, 2), "{screen:?}");
            ranks.extend(own);
        }
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2, 3]);
        for run in &nodes {
            for rank in 0..4 {
                if run.path(&format!("fifo{rank}")).exists() {
                    fs::write(run.path(&format!("fifo{rank}")), "go\n").unwrap();
                }
            }
        }
        for run in nodes {
            let lines = run.lines_of_success();
            let last = lines.last().unwrap();
            assert!(last.contains("4 workers on 2 nodes"), "{last}");
        }
    }
}
