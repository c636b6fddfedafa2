use std::path::PathBuf;

use serde_json::json;

use super::*;
use crate::RpcErrorKind;

/// Reads options from keywords, and checks them as a backend does.
fn constructed(words: &Value) -> Result<RpcOptions, String> {
    let options = from_words::<RpcOptions>(words.as_object().unwrap());
    let checked = options.and_then(|options| options.check().map(|()| options));
    checked.map_err(|error| {
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
        error.message
    })
}

fn refused(keywords: &Value) -> String {
    constructed(keywords).unwrap_err()
}

#[test]
fn the_defaults_are_those_of_the_reference() {
    let options = constructed(&json!({})).unwrap();
    assert_eq!(
        format!("{options:?}"),
        format!("{:?}", RpcOptions::default())
    );
    assert_eq!(options.timeout, Timeout::Default);
    assert_eq!(DEFAULT_TIMEOUT, Duration::from_secs(60));
    assert_eq!(options.init_method, "env://");
    assert_eq!(options.num_worker_threads, 16);
    assert!(options.device_maps.is_empty() && options.devices.is_empty());
    assert_eq!(options.transports, None);
    // Unlike in PyTorch, the start has a separate timeout.
    assert_eq!(options.init_deadline, Duration::from_secs(300));
    assert_eq!(options.lease, Duration::from_secs(5));
    assert_eq!(options.transport.heartbeat_limit, Duration::from_secs(5));
}

#[test]
fn timeouts_are_positive_or_none() {
    let of = |seconds: Option<f64>| {
        constructed(&json!({ "rpc_timeout": seconds })).map(|options| options.timeout)
    };
    assert_eq!(of(Some(0.5)), Ok(Duration::from_millis(500).into()));
    assert_eq!(of(Some(0.000_001)), Ok(Duration::from_micros(1).into()));
    assert_eq!(of(None), Ok(Timeout::Never));
    for negative in [-0.5, -1.0, -2.0] {
        let text = of(Some(negative)).unwrap_err();
        assert!(text.ends_with("RPC Timeout must be non-negative"), "{text}");
    }
    for zero in [0.0, -0.0] {
        assert!(
            of(Some(zero))
                .unwrap_err()
                .starts_with("RPC timeout must be positive")
        );
    }
    assert!(of(Some(1e-9)).unwrap_err().contains("option rpc_timeout "));
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-9] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn worker_threads_are_positive() {
    assert_eq!(
        refused(&json!({ "num_worker_threads": 0 })),
        "num_worker_threads must be positive, got 0"
    );
    let text = refused(&json!({ "num_worker_threads": -3 }));
    assert!(
        text.starts_with("the option num_worker_threads cannot be -3"),
        "{text}"
    );
    let options = constructed(&json!({ "num_worker_threads": 2 })).unwrap();
    assert_eq!(options.num_worker_threads, 2);
}

#[test]
fn device_maps_and_devices_given_as_words_are_honoured() {
    let options = constructed(&json!({
        "device_maps": { "w1": { "0": 1, "cuda:1": "0", "cpu": "cpu" } },
        "devices": [0, "cuda:1"],
    }))
    .unwrap();
    assert_eq!(
        options.device_maps["w1"].to_string(),
        "{cpu: cpu, cuda:0: cuda:1, cuda:1: cuda:0}"
    );
    assert_eq!(options.devices, [0, 1].map(Device::from));
}

#[test]
fn maps_are_one_to_one() {
    let text = refused(&json!({ "device_maps": { "w1": { "cuda:0": 1, "cuda:2": 1 } } }));
    let wrong =
        "`device_map` only supports 1-to-1 mapping, trying to map cuda:2 and cuda:0 to cuda:1";
    assert!(text.ends_with(wrong), "{text}");
    let mut options = RpcOptions::default();
    options.set_device_map("w1", [(0, 1)]).unwrap();
    options.set_device_map("w1", [(0, 1), (1, 0)]).unwrap();
    let error = options.set_device_map("w1", [(1, 2)]).unwrap_err();
    assert_eq!(
        error.message,
        "`set_device_map` only supports 1-to-1 mapping, trying to map cuda:1 to cuda:2 and cuda:0"
    );
    // The map for another callee is separate. A conflict across two calls is found later.
    options.set_device_map("w2", [(1, 2)]).unwrap();
    options.set_device_map("w2", [(0, 2)]).unwrap();
    assert_eq!(
        options.device_maps["w1"].to_string(),
        "{cuda:0: cuda:1, cuda:1: cuda:0}"
    );
}

#[test]
fn devices_are_accelerators_and_replace_one_another() {
    let mut options = RpcOptions {
        devices: vec![Device::from(0), Device::CPU],
        ..RpcOptions::default()
    };
    let error = options.check().unwrap_err();
    assert_eq!(
        error.message,
        "`set_devices` expect a list of CUDA devices, but got device type cpu."
    );
    assert_eq!(
        refused(&json!({ "devices": ["xpu:0"] })),
        "`set_devices` expect a list of CUDA devices, but got device type xpu."
    );
    // Duplicates, and a device without an index, are found when the group forms.
    options.devices = ["cuda", "0", "0"].map(|text| text.parse().unwrap()).into();
    options.check().unwrap();
}

#[test]
fn transports_and_channels_are_known_or_refused() {
    let options = constructed(&json!({ "_transports": ["shm", "uv"] })).unwrap();
    assert_eq!(
        options.transports.unwrap(),
        [TransportName::Shm, TransportName::Tcp]
    );
    assert!(refused(&json!({ "_transports": ["ibv"] })).contains("rdzv has no transport ibv"));
    assert!(constructed(&json!({ "_transports": ["ibv", "uv"] })).is_ok());
    assert!(refused(&json!({ "_transports": ["pigeon"] })).contains("unknown variant `pigeon`"));
    assert!(refused(&json!({ "transports": ["TCP"] })).contains("unknown variant `TCP`"));
    assert!(refused(&json!({ "transports": [] })).contains("is empty"));
    // All channels that PyTorch knows, with or without an effect here.
    let known = [
        "basic",
        "cma",
        "mpt_uv",
        "cuda_basic",
        "cuda_gdr",
        "cuda_ipc",
        "cuda_xth",
    ];
    assert!(constructed(&json!({ "_channels": known })).is_ok());
    for unknown in ["pigeon", "CMA", ""] {
        assert_eq!(
            refused(&json!({ "_channels": ["basic", unknown] })),
            format!("Unknown channel: {unknown}")
        );
    }
}

#[test]
fn a_word_that_is_not_known_is_refused() {
    for keywords in [json!({ "num_threads": 4 }), json!({ "num_threads": null })] {
        let text = refused(&keywords);
        assert!(
            text.contains("unknown field `num_threads`, expected one of `rpc_timeout`,"),
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
    let text = refused(&json!({ "device_maps": { "w1": { "gpu": 1 } } }));
    let wrong =
        "Expected one of cpu, cuda, xpu, mps, meta device type at start of device string: gpu";
    assert!(text.ends_with(wrong), "{text}");
}

#[test]
fn times_and_secrets_are_taken_or_refused() {
    let options = constructed(&json!({
        "init_deadline": 2.5,
        "lease": 1,
        "heartbeat_limit": 30,
        "message_limit": 8_u64 << 30,
        "token": "a secret of words",
        "address": "10.0.0.1",
        "tls": { "certificate": "c.pem", "key": "k.pem", "authorities": "a.pem" },
    }))
    .unwrap();
    assert_eq!(options.init_deadline, Duration::from_millis(2500));
    assert_eq!(options.lease, Duration::from_secs(1));
    assert_eq!(options.transport.heartbeat_limit, Duration::from_secs(30));
    assert_eq!(options.message_limit, 8 << 30);
    let token = Token::new(b"a secret of words").unwrap();
    assert!(options.token.as_ref().unwrap().is_bearer(&token.bearer()));
    assert!(!format!("{options:?}").contains("a secret"));
    assert_eq!(options.address.unwrap().to_string(), "10.0.0.1");
    assert_eq!(options.tls.as_ref().unwrap().key, PathBuf::from("k.pem"));
    assert!(refused(&json!({ "init_deadline": 0 })).contains("must be positive"));
    assert!(refused(&json!({ "init_deadline": -1 })).contains("is not a valid duration"));
    assert!(refused(&json!({ "lease": 0.05 })).contains("at least 100ms"));
    assert!(refused(&json!({ "heartbeat_limit": 1.9 })).contains("at least 2s"));
    assert!(refused(&json!({ "message_limit": 1 })).contains("at least 65536 bytes"));
    assert_eq!(
        refused(&json!({ "token": "fifteen letters" })),
        "the option token cannot be this value: a job token of 15 bytes is too easy to guess: use \
         at least 16 random bytes"
    );
}
