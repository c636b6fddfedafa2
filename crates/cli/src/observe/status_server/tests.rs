use rdzv_agent::health::Liveness;

use super::*;

/// What `GET /` says.
fn health_of(liveness: &Liveness) -> (u16, String) {
    let facts = rdzv_agent::observe::RunFacts {
        run_id: "job".to_owned(),
        role: "default".to_owned(),
        host: rdzv_agent::host::HostName::Given("node".to_owned()),
        backend: "c10d".to_owned(),
        entry_point: "python".to_owned(),
        max_restarts: 0,
        local_world_size: 1,
    };
    let sources = Sources {
        token: None,
        liveness: liveness.clone(),
        metrics: Registry::default(),
        status: Arc::new(Mutex::new(NodeReport::new(&facts))),
        worker_sockets: None,
    };
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
    // What is sent to a thread that has ended is dropped.
    let ended = liveness.watch("gone", Arc::new(drop));
    let said = "awake: alive\ngone: has ended\n".to_owned();
    assert_eq!(health_of(&liveness), (503, said));
    drop(ended);
    assert_eq!(health_of(&liveness).0, 200);
}
