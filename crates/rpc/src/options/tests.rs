use std::path::PathBuf;

use serde_json::json;

use super::*;

fn constructed(timeout: Option<f64>, keywords: &serde_json::Value) -> Result<RpcOptions, String> {
    let arguments = OptionArguments {
        rpc_timeout: timeout,
        keywords: keywords.as_object().unwrap().clone(),
        ..OptionArguments::default()
    };
    RpcOptions::construct(&arguments).map_err(|error| {
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
        error.message
    })
}

fn refused(keywords: &serde_json::Value) -> String {
    constructed(Some(60.0), keywords).unwrap_err()
}

#[test]
fn the_defaults_are_those_of_the_reference() {
    let options = RpcOptions::construct(&OptionArguments::default()).unwrap();
    assert_eq!(options, RpcOptions::default());
    assert_eq!(options.timeout(), Some(Duration::from_secs(60)));
    assert_eq!(options.init_method(), "env://");
    assert_eq!(options.num_worker_threads(), 16);
    assert!(options.device_maps().is_empty() && options.devices().is_empty());
    assert_eq!(options.transports(), None);
    // Ours: the time for the beginning is not that of a call.
    assert_eq!(options.init_deadline(), Duration::from_secs(300));
    assert_eq!(options.lease(), Duration::from_secs(5));
    assert_eq!(options.heartbeat_limit(), Duration::from_secs(5));
}

#[test]
fn timeouts_are_positive_or_none() {
    let of = |seconds| constructed(seconds, &json!({})).map(|options| options.timeout());
    assert_eq!(of(Some(0.5)), Ok(Some(Duration::from_millis(500))));
    assert_eq!(of(Some(0.000_001)), Ok(Some(Duration::from_micros(1))));
    assert_eq!(of(None), Ok(None));
    for negative in [-0.5, -1.0, -2.0, f64::NEG_INFINITY] {
        assert_eq!(
            of(Some(negative)).unwrap_err(),
            "RPC Timeout must be non-negative"
        );
    }
    for zero in [0.0, -0.0] {
        assert!(
            of(Some(zero))
                .unwrap_err()
                .starts_with("RPC timeout must be positive")
        );
    }
    for wrong in [f64::NAN, f64::INFINITY, 1e-9] {
        assert!(of(Some(wrong)).unwrap_err().starts_with("rpc_timeout is "));
    }
    let mut options = RpcOptions::default();
    assert!(options.set_timeout(Some(Duration::ZERO)).is_err());
    assert_eq!(options.timeout(), Some(Duration::from_secs(60)));
}

#[test]
fn worker_threads_are_positive() {
    for threads in [0, -3] {
        assert_eq!(
            refused(&json!({ "num_worker_threads": threads })),
            format!("num_worker_threads must be positive, got {threads}")
        );
    }
    let options = constructed(None, &json!({ "num_worker_threads": 2 })).unwrap();
    assert_eq!(options.num_worker_threads(), 2);
}

#[test]
fn device_maps_and_devices_given_as_words_are_honoured() {
    let options = constructed(
        None,
        &json!({
            "device_maps": { "w1": { "0": 1, "cuda:1": "0", "cpu": "cpu" } },
            "devices": [0, "cuda:1"],
        }),
    )
    .unwrap();
    assert_eq!(
        options.device_maps()["w1"].to_string(),
        "{cpu: cpu, cuda:0: cuda:1, cuda:1: cuda:0}"
    );
    assert_eq!(options.devices(), [0, 1].map(Device::from));
    let data = options.device_data(2);
    assert_eq!((data.device_count, data.devices.len()), (2, 2));
    assert_eq!(&data.device_maps, options.device_maps());
}

#[test]
fn maps_are_one_to_one() {
    assert_eq!(
        refused(&json!({ "device_maps": { "w1": { "cuda:0": 1, "cuda:2": 1 } } })),
        "`device_map` only supports 1-to-1 mapping, trying to map cuda:2 and cuda:0 to cuda:1"
    );
    let mut options = RpcOptions::default();
    options.set_device_map("w1", [(0, 1)]).unwrap();
    options.set_device_map("w1", [(0, 1), (1, 0)]).unwrap();
    let error = options.set_device_map("w1", [(1, 2)]).unwrap_err();
    assert_eq!(
        error.message,
        "`set_device_map` only supports 1-to-1 mapping, trying to map cuda:1 to cuda:2 and cuda:0"
    );
    // Another callee has a map of its own; two devices to one across two calls are found later.
    options.set_device_map("w2", [(1, 2)]).unwrap();
    options.set_device_map("w2", [(0, 2)]).unwrap();
    assert_eq!(
        options.device_maps()["w1"].to_string(),
        "{cuda:0: cuda:1, cuda:1: cuda:0}"
    );
}

#[test]
fn devices_are_accelerators_and_replace_one_another() {
    let mut options = RpcOptions::default();
    options.set_devices([1, 0]).unwrap();
    let error = options
        .set_devices([Device::from(0), Device::CPU])
        .unwrap_err();
    assert_eq!(
        error.message,
        "`set_devices` expect a list of CUDA devices, but got device type cpu."
    );
    assert_eq!(
        refused(&json!({ "devices": ["xpu:0"] })),
        "`set_devices` expect a list of CUDA devices, but got device type xpu."
    );
    assert_eq!(options.devices(), [1, 0].map(Device::from));
    // Duplicates, and one without an index, are found when the group is formed.
    options
        .set_devices(["cuda", "0", "0"].map(|text| text.parse::<Device>().unwrap()))
        .unwrap();
}

#[test]
fn transports_and_channels_are_known_or_refused() {
    let options = constructed(None, &json!({ "_transports": ["shm", "uv"] })).unwrap();
    assert_eq!(
        options.transports().unwrap(),
        [TransportName::Shm, TransportName::Tcp]
    );
    assert_eq!(
        refused(&json!({ "_transports": ["ibv"] })),
        "Unknown transport: ibv"
    );
    assert_eq!(
        refused(&json!({ "transports": ["TCP"] })),
        "Unknown transport: TCP"
    );
    assert!(refused(&json!({ "transports": [] })).contains("is empty"));
    assert!(constructed(None, &json!({ "_channels": ["basic"] })).is_ok());
    assert_eq!(
        refused(&json!({ "_channels": ["basic", "cma"] })),
        "Unknown channel: cma"
    );
}

#[test]
fn a_word_that_is_not_known_is_refused() {
    for keywords in [json!({ "num_threads": 4 }), json!({ "num_threads": null })] {
        let text = refused(&keywords);
        assert!(
            text.contains("no option num_threads; it has num_worker_threads,"),
            "{text}"
        );
    }
}

#[test]
fn a_value_of_another_type_is_refused_and_shown() {
    for (word, value) in [
        ("num_worker_threads", json!(1.5)),
        ("device_maps", json!([1])),
        ("devices", json!([1.5])),
        ("devices", json!([-1])),
        ("transports", json!("shm")),
        ("token", json!(7)),
        ("address", json!("node-1")),
        ("tls", json!({ "certificate": "c" })),
        ("lease", json!("5s")),
    ] {
        let text = refused(&json!({ word: value }));
        assert!(
            text.starts_with(&format!("the option {word} cannot be ")),
            "{text}"
        );
    }
    assert_eq!(
        refused(&json!({ "device_maps": { "w1": { "gpu": 1 } } })),
        "Expected one of cpu, cuda, xpu, mps, meta device type at start of device string: gpu"
    );
}

#[test]
fn times_and_secrets_are_taken_or_refused() {
    let options = constructed(
        Some(1.0),
        &json!({
            "init_deadline": 2.5,
            "lease": 1,
            "heartbeat_limit": 30,
            "message_limit": 8_u64 << 30,
            "token": "a secret of words",
            "address": "10.0.0.1",
            "tls": { "certificate": "c.pem", "key": "k.pem", "authorities": "a.pem" },
        }),
    )
    .unwrap();
    assert_eq!(options.init_deadline(), Duration::from_millis(2500));
    assert_eq!(options.lease(), Duration::from_secs(1));
    assert_eq!(options.heartbeat_limit(), Duration::from_secs(30));
    assert_eq!(options.message_limit(), 8 << 30);
    assert_eq!(options.token().unwrap().text(), "a secret of words");
    assert!(!format!("{options:?}").contains("a secret"));
    assert_eq!(options.address().unwrap().to_string(), "10.0.0.1");
    assert_eq!(options.tls().unwrap().key, PathBuf::from("k.pem"));
    assert!(refused(&json!({ "init_deadline": 0 })).contains("must be positive"));
    assert!(refused(&json!({ "init_deadline": -1 })).contains("is no time"));
    assert!(refused(&json!({ "lease": 0.05 })).contains("at least 100ms"));
    assert!(refused(&json!({ "heartbeat_limit": 1.9 })).contains("at least 2s"));
    assert!(refused(&json!({ "message_limit": 1 })).contains("at least 65536 bytes"));
    assert_eq!(
        refused(&json!({ "token": "fifteen letters" })),
        "a job token of 15 bytes can be guessed: take 16 random bytes or more"
    );
}
