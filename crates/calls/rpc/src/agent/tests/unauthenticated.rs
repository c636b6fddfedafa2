//! Tests with peers that are not workers, or that belong to another job.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use rdzv_testing::TestAuthority;

use super::*;
use crate::transport::Identity;
use crate::{Method, RpcErrorKind};

const NOTHING: Method<(), ()> = Method::new("nothing");

fn methods() -> Methods {
    Methods::new().with(NOTHING, async |()| Ok::<_, String>(()))
}

fn over_tcp(tokens: Vec<Option<Token>>) -> Vec<RpcAgent> {
    let transports = TransportOptions {
        unix: false,
        ..TransportOptions::default()
    };
    let made = Made {
        transports,
        tokens,
        ..Made::default()
    };
    super::made(2, &made, methods)
}

/// Checks that a call of the first worker to the second one fails like this.
fn w1_is_refused(agents: &[RpcAgent], kind: RpcErrorKind, said: &str) {
    let error = agents[0].call("w1", NOTHING, &()).wait().unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.message.contains(said), "{error}");
}

/// Makes w0 search for w1 at the address of a worker in `others`.
fn w1_has_moved_to(agents: &[RpcAgent], others: &[RpcAgent], worker: u32) {
    let core = agents[0].core();
    let mut members = (*core.members()).clone();
    let there = others[0].core().members()[&WorkerId(worker)].clone();
    members.get_mut(&WorkerId(1)).unwrap().peer_address = there.peer_address;
    core.set_members(members);
}

fn address(agent: &RpcAgent, of: u32) -> std::net::SocketAddr {
    agent.core().members()[&WorkerId(of)].peer_address.address
}

#[test]
fn garbage_stalling_and_flooding_harm_nobody_else() {
    let agents = over_tcp(Vec::new());
    let at = address(&agents[0], 1);
    let mut stalling: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(at).unwrap()).collect();
    for stream in &mut stalling {
        stream.write_all(b"rdzc").unwrap();
    }
    let mut seed = fastrand::Rng::with_seed(7);
    for _ in 0..50 {
        let mut garbage = vec![0; 4096];
        seed.fill(&mut garbage);
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        // The victim may close the connection before everything is written.
        let _ = stream.write_all(&garbage);
        let mut answer = Vec::new();
        // The connection must be closed, normally or with a reset.
        let end = stream.read_to_end(&mut answer).map_err(|end| end.kind());
        assert_ne!(end, Err(std::io::ErrorKind::WouldBlock), "it stays open");
    }
    // A long stream of frames, each larger than an unauthenticated peer may send.
    let mut flood = TcpStream::connect(at).unwrap();
    flood.set_write_timeout(Some(LONGEST)).unwrap();
    let header = rdzv_rpc_proto::frame::Header::new(rdzv_rpc_proto::frame::FrameKind::Hello);
    let mut frame = Vec::new();
    rdzv_rpc_proto::frame::encode(&header, &vec![0; 1 << 20], &[], &mut frame);
    let mut closed = false;
    for _ in 0..100 {
        closed |= flood.write_all(&frame).is_err();
    }
    assert!(closed, "a stranger may send a megabyte");
    for _ in 0..100 {
        agents[0].call("w1", NOTHING, &()).wait().unwrap();
    }
}

#[test]
fn a_peer_has_to_say_who_it_is_within_the_time_of_the_options() {
    let greeting = Duration::from_millis(300);
    let transports = TransportOptions {
        unix: false,
        greeting,
        ..TransportOptions::default()
    };
    let made = Made::over(transports);
    let agents = super::made(1, &made, methods);
    let at = address(&agents[0], 0);
    for said in [&b""[..], b"rdzc"] {
        let begun = Instant::now();
        let mut silent = TcpStream::connect(at).unwrap();
        silent.write_all(said).unwrap();
        silent.set_read_timeout(Some(LONGEST)).unwrap();
        let mut said = Vec::new();
        silent.read_to_end(&mut said).unwrap();
        let took = begun.elapsed();
        assert!(took >= greeting && took < LONGEST / 2, "{took:?}");
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("did not identify itself in time"), "{said}");
    }
}

#[test]
fn a_worker_of_another_job_is_refused_and_notified_why() {
    let token = |byte| Some(Token::new(&[byte; 32]).unwrap());
    for (ours, theirs, said) in [
        (token(1), token(2), "different job tokens"),
        (token(1), None, "has a job token, but"),
        (None, token(1), "has a job token, but"),
    ] {
        let agents = over_tcp(vec![ours, theirs]);
        w1_is_refused(&agents, RpcErrorKind::Protocol, said);
        assert_eq!(agents[1].traffic().served, 0);
    }
    let agents = over_tcp(vec![token(1), token(1)]);
    agents[0].call("w1", NOTHING, &()).wait().unwrap();
}

#[test]
fn a_worker_has_no_other_name_than_its_certificate_says() {
    // All agents show the certificate of w1, which w0 wants to call.
    let transports = TransportOptions {
        unix: false,
        tls: Some(certificate_for("w1")),
        ..TransportOptions::default()
    };
    let made = Made::over(transports);
    let agents = super::made(2, &made, methods);
    let said = "it claims to be w0, but its certificate is for w1";
    w1_is_refused(&agents, RpcErrorKind::Protocol, said);
    assert_eq!(agents[1].traffic().served, 0);
    // The certificate is accepted for the name that it contains.
    agents[1].call("w1", NOTHING, &()).wait().unwrap();
}

fn certificate_for(name: &str) -> Arc<Identity> {
    let authority = TestAuthority::new();
    let (certificate, key) = authority.files(name);
    Arc::new(Identity::from_files(&certificate, &key, &authority.file()).unwrap())
}

#[test]
fn a_worker_whose_address_another_one_has_now_is_lost() {
    let agents = group(3, methods);
    w1_has_moved_to(&agents, &agents, 2);
    w1_is_refused(&agents, RpcErrorKind::PeerLost, "address is out of date");
}

#[test]
fn a_worker_whose_address_one_of_another_job_has_now_is_lost() {
    let agents = group(2, methods);
    let other = Made {
        group: 2,
        ..Made::default()
    };
    let others = made(3, &other, methods);
    w1_has_moved_to(&agents, &others, 2);
    w1_is_refused(&agents, RpcErrorKind::PeerLost, "address is out of date");
    // A worker of the same name is no successor: it belongs to another job, so another try would
    // fail too.
    w1_has_moved_to(&agents, &others, 1);
    let said = "to an earlier group or to another job";
    w1_is_refused(&agents, RpcErrorKind::Protocol, said);
    assert_eq!(others[1].traffic().served + others[2].traffic().served, 0);
}
