//! Tests of an agent with a scripted rendezvous: nodes join, leave and fail.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};

use rdzv_agent::AgentEvent;
use rdzv_agent::api::{
    ElasticAgent, LocalElasticAgent, RunError, RunResult, StopHandle, WorkerSpecBuilder,
};
use rdzv_agent::config::RendezvousPlan;
use rdzv_agent::outcome::Exit;
use rdzv_agent_proto::group::Failure;
use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank, Rank};
use rdzv_rendezvous::{
    BackendRegistry, Change, Interrupter, JoiningAgent, Observer, RendezvousBackend,
    RendezvousError, RendezvousInfo, RendezvousParameters,
};
use rdzv_store::{HashStore, ServerOptions, Store, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::{DEADLINE, pids};
use tempfile::TempDir;

use crate::{in_turn, lines, shell};

/// Round index, this node's rank, number of agents, and ranks if known.
/// The last part is the first rank of this node's workers and the number of all workers.
type Round = (u32, u32, u32, Option<(u32, u32)>);

/// Answer to a join.
type Answer = Box<dyn FnOnce() -> Result<RendezvousInfo, RendezvousError> + Send>;

/// Rendezvous that the test answers.
/// The agents of a round share nothing here. If a round has several agents and no ranks, the agents
/// never receive ranks. No node passes the exit barrier of such a round.
struct Scripted {
    run_id: RunId,
    asked: Sender<String>,
    answer: Sender<Answer>,
    answers: Receiver<Answer>,
    observer: Arc<OnceLock<Observer>>,
}

impl Scripted {
    fn say(&self, text: impl Into<String>) {
        let _ = self.asked.send(text.into());
    }
}

impl RendezvousBackend for Scripted {
    fn name(&self) -> &str {
        "scripted"
    }

    fn run_id(&self) -> &RunId {
        &self.run_id
    }

    fn join(&mut self, _: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        self.say("join");
        self.answers.recv().expect("the backend has a sender too")()
    }

    fn interrupter(&self) -> Option<Interrupter> {
        let answer = Mutex::new(self.answer.clone());
        Some(Arc::new(move || {
            let interrupted = Box::new(|| Err(RendezvousError::Interrupted));
            let _ = answer.lock().unwrap().send(interrupted);
        }))
    }

    fn set_observer(&mut self, observer: Observer) {
        assert!(self.observer.set(observer).is_ok(), "set once");
    }

    fn shares_store_with_workers(&self) -> bool {
        false
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(false)
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        Ok(0)
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        self.say(reason);
        Ok(())
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        self.say("leave");
        Ok(())
    }

    fn shutdown(&mut self) -> bool {
        self.say("shutdown");
        true
    }
}

/// Running agent, and the test's side of its rendezvous.
struct Run {
    directory: TempDir,
    stop: StopHandle,
    agent: JoinHandle<Result<RunResult, RunError>>,
    events: Receiver<AgentEvent>,
    asked: Receiver<String>,
    answers: Sender<Answer>,
    observer: Arc<OnceLock<Observer>>,
    _turn: MutexGuard<'static, ()>,
}

fn agent(script: &str) -> Run {
    agent_with(script, |builder| builder)
}

fn agent_with(script: &str, more: impl FnOnce(WorkerSpecBuilder) -> WorkerSpecBuilder) -> Run {
    let (turn, directory) = in_turn();
    let (asking, asked) = channel();
    let (answer, answers) = channel();
    let observer: Arc<OnceLock<Observer>> = Arc::default();
    let scripted = Mutex::new(Some(Scripted {
        run_id: RunId::new("none"),
        asked: asking,
        answer: answer.clone(),
        answers,
        observer: Arc::clone(&observer),
    }));
    let mut backends = BackendRegistry::default();
    let constructor = move |_: &RendezvousParameters| {
        let scripted = scripted.lock().unwrap().take();
        Ok(Box::new(scripted.expect("created once")) as Box<dyn RendezvousBackend>)
    };
    backends
        .register("scripted", Arc::new(constructor))
        .unwrap();
    let parameters =
        RendezvousParameters::new("scripted", "", "none", 1, 2, BTreeMap::new()).unwrap();
    let (sender, events) = channel();
    let builder = shell(script, &directory)
        .backends(backends)
        .rendezvous(RendezvousPlan::Dynamic { parameters })
        .max_restarts(0)
        .event_handler(move |event: &AgentEvent| {
            let _ = sender.send(event.clone());
        });
    let mut agent = LocalElasticAgent::new(more(builder).build().unwrap());
    Run {
        directory,
        stop: agent.stop_handle(),
        agent: thread::spawn(move || agent.run("default")),
        events,
        asked,
        answers: answer,
        observer,
        _turn: turn,
    }
}

impl Run {
    /// Asserts the next call of the agent to the rendezvous.
    #[track_caller]
    fn expect(&self, what: &str) {
        assert_eq!(self.asked.recv_timeout(DEADLINE).as_deref(), Ok(what));
    }

    #[track_caller]
    fn answer(
        &self,
        answer: impl FnOnce() -> Result<RendezvousInfo, RendezvousError> + Send + 'static,
    ) {
        self.expect("join");
        self.answers.send(Box::new(answer)).unwrap();
    }

    /// Answers a join with a round.
    #[track_caller]
    fn round(&self, round: Round) {
        self.round_with(Arc::new(HashStore::new()), round);
    }

    #[track_caller]
    fn round_with(&self, store: Arc<dyn Store>, (round, rank, world_size, ranks): Round) {
        self.answer(move || {
            Ok(RendezvousInfo {
                round: round.into(),
                store,
                rank: GroupRank(rank),
                world_size,
                assignment: ranks.map(|(base, all)| Assignment::from((base, all, base, all))),
                replaced: Vec::new(),
                master_addr: "10.0.0.9".to_owned(),
                master_port: 4000,
                server: None,
                reserved_port: None,
            })
        });
    }

    fn notify(&self, change: Change) {
        self.observer.get().unwrap()(change);
    }

    /// Notifies the agent that a node arrived, which ends a round.
    fn change(&self, round: u32) {
        let reason = "node b came".to_owned();
        self.notify(Change::Membership {
            round: round.into(),
            reason,
        });
    }

    #[track_caller]
    fn wait_for(&self, is_it: fn(&AgentEvent) -> bool) {
        while !is_it(&self.events.recv_timeout(DEADLINE).unwrap()) {}
    }

    #[track_caller]
    fn wait_for_start(&self) {
        self.wait_for(|event| matches!(event, AgentEvent::WorkerStarted { .. }));
    }

    /// Waits for the agent's end, and returns the output of the workers.
    #[track_caller]
    fn succeeds(self) -> Vec<String> {
        assert!(!self.agent.join().unwrap().unwrap().is_failed());
        lines(&self.directory, "said")
    }

    #[track_caller]
    fn fails(self, error: &str) {
        assert_eq!(self.agent.join().unwrap().unwrap_err().to_string(), error);
    }

    #[track_caller]
    fn stops(self, had_workers: bool) {
        let Err(RunError::Signalled {
            signal: 15,
            workers_started,
        }) = self.agent.join().unwrap()
        else {
            panic!("another end");
        };
        assert_eq!(workers_started, had_workers);
    }
}

/// Script of a worker that writes its rank.
const RANK: &str = "echo $RANK/$WORLD_SIZE >> $DIR/said";

#[test]
fn a_newcomer_leads_to_a_new_round_that_costs_no_restart() {
    // The script succeeds in round 1.
    let run = agent(
        "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE \\
            $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_RESTART_COUNT $RDZV_ROUND
        test $RDZV_ROUND = 1 || { mkfifo $DIR/told; echo > $DIR/told; sleep 1000; }",
    );
    run.round((0, 0, 1, Some((0, 1))));
    run.wait_for_start();
    // Wait until the worker has written to the pipe.
    while !run.directory.path().join("told").exists() {
        thread::yield_now();
    }
    std::fs::read(run.directory.path().join("told")).unwrap();
    run.change(0);
    run.wait_for(
        |event| matches!(event, AgentEvent::Regrouping { reason, .. } if *reason == "node b came"),
    );
    run.round((1, 1, 2, Some((1, 2))));
    run.wait_for(|event| {
        matches!(
            event,
            AgentEvent::WorkerExited {
                exit: Exit::Code(0),
                ..
            }
        )
    });
    // No node passes the barrier of this round, so the peer's failure ends it.
    let (node, reason) = ("b".to_owned(), "code 7".to_owned());
    run.notify(Change::PeerFailed { node, reason });
    run.expect("shutdown");
    // The output of the first round is kept.
    let logs = std::fs::read_dir(run.directory.path().join("logs"));
    let logs = logs.unwrap().next().unwrap().unwrap().path();
    for (attempt, text) in [
        ("attempt_0", "0/1 0/1 10.0.0.9:4000 0 0\n"),
        ("attempt_0.r1", "1/2 1/2 10.0.0.9:4000 0 1\n"),
    ] {
        let log = logs.join(attempt).join("0/stdout.log");
        assert_eq!(std::fs::read_to_string(log).unwrap(), text);
    }
    let error = run.agent.join().unwrap().unwrap_err().to_string();
    assert!(
        error.starts_with("node b has failed permanently"),
        "{error}"
    );
}

#[test]
fn ranks_that_the_rendezvous_does_not_know_are_exchanged_through_the_store() {
    let run = agent(RANK);
    run.round((0, 0, 1, None));
    run.expect("shutdown");
    assert_eq!(run.succeeds(), ["0/1"]);
}

#[test]
fn a_node_takes_part_in_a_round_whose_store_is_gone_again() {
    let run = agent(RANK);
    let server = TcpStoreServer::start(ServerOptions::default()).unwrap();
    let gone = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", server.port()));
    drop(server);
    run.round_with(Arc::new(gone.unwrap()), (0, 0, 1, Some((0, 1))));
    // The barrier of this round needs the store.
    run.expect("shutdown");
    assert_eq!(run.succeeds(), ["0/1"]);
}

#[test]
fn a_change_during_the_exchange_of_ranks_leads_to_another_round() {
    let run = agent("exit 0");
    run.round((0, 0, 2, None));
    run.wait_for(|event| matches!(event, AgentEvent::Rendezvous { .. }));
    run.change(0);
    run.round((1, 0, 1, Some((0, 1))));
    run.expect("shutdown");
    run.succeeds();
}

#[test]
fn a_surplus_node_ends_well() {
    let run = agent("exit 9");
    let run_id = "none".to_owned();
    run.answer(|| Err(RendezvousError::NotNeeded { run_id }));
    run.expect("leave");
    run.succeeds();
}

#[test]
fn a_signal_while_waiting_for_peers_leaves_in_order() {
    let run = agent("exit 0");
    run.expect("join");
    run.stop.stop(15);
    run.expect("leave");
    run.stops(false);
}

#[test]
fn a_signal_while_workers_run_leaves_the_job_to_the_others() {
    let run = agent("sleep 1000");
    run.round((0, 0, 2, Some((0, 2))));
    run.wait_for_start();
    run.stop.stop(15);
    run.expect("leave");
    run.stops(true);
}

#[test]
fn the_others_hear_of_a_last_failure_before_stubborn_siblings_have_ended() {
    let worker = "trap '' TERM
        if [ $LOCAL_RANK = 0 ]; then until [ -s $DIR/said ]; do sleep 0.01; done; exit 7; fi
        echo $$ > $DIR/said; sleep 1000 & wait; wait";
    let run = agent_with(worker, |builder| builder.local_world_size(2));
    run.round((0, 0, 2, Some((0, 4))));
    let said = run.asked.recv_timeout(DEADLINE).unwrap();
    let (sentence, failure) = Failure::decode(&said);
    assert!(
        sentence.starts_with("worker (rank 0, local rank 0, pid ")
            && sentence.ends_with(") exited with code 7"),
        "{said}"
    );
    let evidence = failure.unwrap().0.evidence;
    assert_eq!(
        (evidence.rank, evidence.exit),
        (Some(Rank(0)), Some(Exit::Code(7)))
    );
    // The other worker has a shutdown timeout of 30 s.
    let stubborn = lines(&run.directory, "said")[0].parse().unwrap();
    pids::kill(stubborn, rustix::process::Signal::KILL);
    assert!(run.agent.join().unwrap().unwrap().is_failed());
}

#[test]
fn the_loss_of_a_node_explains_a_last_failure() {
    let run = agent("test $RDZV_ROUND = 1");
    run.round((0, 0, 2, Some((0, 2))));
    run.wait_for(|event| matches!(event, AgentEvent::WorkerExited { .. }));
    run.change(0);
    run.round((1, 0, 1, Some((0, 1))));
    run.expect("shutdown");
    run.succeeds();
}

#[test]
fn without_its_rendezvous_an_agent_stops_its_workers() {
    let run = agent("sleep 1000");
    run.round((0, 0, 1, Some((0, 1))));
    run.wait_for_start();
    let lost = RendezvousError::Argument("the host of the store has gone".to_owned());
    run.notify(Change::Lost(lost));
    run.expect("leave");
    run.fails("the host of the store has gone");
}

#[test]
fn a_backend_that_panics_ends_the_run_with_its_name() {
    let run = agent("exit 0");
    run.answer(|| panic!("as the test wants it"));
    run.fails(
        "the rendezvous thread panicked at the rendezvous backend\nhelp: fix this bug in the backend; \
         stderr has the message of the panic",
    );
}

#[test]
fn a_rendezvous_that_fails_is_the_error_of_the_run() {
    let run = agent("exit 0");
    run.answer(|| Err(RendezvousError::Argument("no node came".to_owned())));
    run.expect("leave");
    run.fails("no node came");
}
