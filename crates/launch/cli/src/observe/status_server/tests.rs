use axum::extract::connect_info::MockConnectInfo;
use rdzv_agent::health::Liveness;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};

use std::sync::Mutex;

use super::*;

fn sources(liveness: &Liveness, token: Option<Token>) -> Sources {
    let facts = rdzv_agent::observe::RunFacts {
        run_id: "job".to_owned(),
        role: "default".to_owned(),
        host: rdzv_agent::launcher::host::HostName::Given("node".to_owned()),
        backend: "c10d".to_owned(),
        entry_point: "python".to_owned(),
        max_restarts: 0,
        local_world_size: 1,
    };
    let node = Arc::new(Mutex::new(NodeReport::new(&facts)));
    Sources {
        token,
        liveness: liveness.clone(),
        metrics: Registry::default(),
        job: Some(JobServer::new(node, GroupStatus::default(), false, None)),
        group: None,
        worker_sockets: None,
    }
}

/// Returns the answer to `GET /`.
fn health_of(liveness: &Liveness) -> (u16, String) {
    let sources = sources(liveness, None);
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let response = health(State(Arc::new(sources))).await.into_response();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 4096).await;
        let text = String::from_utf8(body.unwrap().to_vec()).unwrap();
        (status, text)
    })
}

#[test]
fn health_names_the_thread_that_makes_no_progress() {
    let liveness = Liveness::new();
    assert_eq!(health_of(&liveness), (200, "starting\n".to_owned()));
    let _awake = liveness.watch("awake", Arc::new(|alive| alive.send(()).unwrap()));
    assert_eq!(health_of(&liveness), (200, "awake: alive\n".to_owned()));
    // The message to a thread that has ended is dropped.
    let ended = liveness.watch("gone", Arc::new(drop));
    let said = "awake: alive\ngone: has exited\n".to_owned();
    assert_eq!(health_of(&liveness), (503, said));
    drop(ended);
    assert_eq!(health_of(&liveness).0, 200);
}

/// Returns the status code of the answer to a peer at this address.
fn code(peer: &str, page: &str, header: &str, token: Option<&Token>) -> u16 {
    let sources = sources(&Liveness::new(), token.cloned());
    let peer: SocketAddr = format!("{peer}:5").parse().unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let routes = routes(Arc::new(sources), false).layer(MockConnectInfo(peer));
        tokio::spawn(async { axum::serve(listener, routes).await });
        let request = format!("GET {page} HTTP/1.0\r\n{header}\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        // The stream of events has no end.
        let mut lines = tokio::io::BufReader::new(client);
        lines.read_line(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    })
}

#[test]
fn other_hosts_are_asked_for_the_bearer_token() {
    let token = Token::new(b"the token of a job").unwrap();
    let shown = format!("Authorization: Bearer {}\r\n", token.bearer());
    let elsewhere = "10.0.0.7";
    for page in [
        "/status",
        "/metrics",
        "/events",
        "/stacks",
        "/output?rank=0",
        "/workers/0/",
        "/workers/0/handler/ping",
    ] {
        assert_eq!(code(elsewhere, page, "", Some(&token)), 401, "{page}");
        let wrong = "Authorization: Bearer 00ff\r\n";
        assert_eq!(code(elsewhere, page, wrong, Some(&token)), 401, "{page}");
        assert_ne!(code(elsewhere, page, &shown, Some(&token)), 401, "{page}");
        assert_ne!(code("127.0.0.1", page, "", Some(&token)), 401, "{page}");
        assert_ne!(code(elsewhere, page, "", None), 401, "{page}");
    }
    assert_eq!(code(elsewhere, "/status", &shown, Some(&token)), 200);
    assert_eq!(code(elsewhere, "/", "", Some(&token)), 200);
    let browser = "Accept: text/html\r\n";
    assert_eq!(code(elsewhere, "/", browser, Some(&token)), 401);
    assert_eq!(code(elsewhere, "/", &(shown + browser), Some(&token)), 200);
    for (host, expected) in [
        ("127.0.0.1:5", 200),
        ("localhost", 200),
        ("evil.example:5", 401),
    ] {
        let host = format!("Host: {host}\r\n");
        assert_eq!(code("127.0.0.1", "/status", &host, None), expected);
    }
}
