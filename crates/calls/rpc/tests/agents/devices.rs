//! Tests of accelerator tensors between workers with different device maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdzv_rpc::device::DeviceBackend;
use rdzv_rpc::device::testing::FakeDevices;
use rdzv_rpc::{Method, Methods, RpcAgent, RpcErrorKind, RpcOptions, Tensor};
use rdzv_rpc_proto::device::{Device, DeviceMap};
use rdzv_store::Store;

use super::{LONG, store, wait_for};

/// Returns the tensor and the index of the device on which it arrived.
const BACK: Method<Tensor, (Tensor, u32)> = Method::new("back");

type Maps<'a> = &'a [(&'a str, &'a [(u32, u32)])];

struct Worker {
    agent: RpcAgent,
    devices: Arc<dyn DeviceBackend>,
}

fn join(store: &Arc<dyn Store>, name: &str, rank: u32, maps: Maps<'_>) -> Worker {
    let devices = FakeDevices::shared(4);
    let methods = Methods::new().with(BACK, async |tensor: Tensor| {
        let index = tensor.device().index().ok_or("it came to the CPU")?;
        Ok::<_, &str>((tensor, index))
    });
    let maps = maps.iter().map(|(target, pairs)| {
        let map = DeviceMap::new(pairs.iter().copied()).unwrap();
        ((*target).to_owned(), map)
    });
    let options = RpcOptions {
        device_maps: maps.collect(),
        ..RpcOptions::default()
    };
    let builder = RpcAgent::builder(name).rank(rank).store(Arc::clone(store));
    let builder = builder.methods(methods).options(options);
    let agent = builder.device_backend(Arc::clone(&devices)).connect();
    Worker {
        agent: agent.unwrap(),
        devices,
    }
}

impl Worker {
    /// Checks on which device a tensor arrives, and that it returns to its own.
    fn assert_sends(&self, to: &str, from: u32, arrives: u32) {
        let device = Device::accelerator(from);
        let tensor = Tensor::from_vec(vec![1_i16, 2, 3], [3]).unwrap();
        let tensor = tensor.to_device(device, &self.devices).unwrap();
        let (back, index) = self.agent.call(to, BACK, &tensor).wait().unwrap();
        assert_eq!((index, back.device()), (arrives, device), "{to}");
        let numbers = back.to_cpu().unwrap();
        assert_eq!(numbers.as_slice::<i16>().unwrap()[..], [1, 2, 3]);
    }

    fn wait_for(&self, count: usize) {
        wait_for("all are seen", || self.agent.workers().len() == count);
    }
}

#[test]
fn results_come_back_to_their_devices_also_after_one_has_left() {
    let store = store();
    let a = join(&store, "a", 0, &[("b", &[(0, 1)]), ("c", &[(1, 2)])]);
    let b = join(&store, "b", 1, &[("a", &[(2, 3)]), ("c", &[(3, 0)])]);
    let c = join(&store, "c", 2, &[("a", &[(1, 1)])]);
    for worker in [&a, &b, &c] {
        worker.wait_for(3);
    }
    a.assert_sends("b", 0, 1);
    a.assert_sends("c", 1, 2);
    b.assert_sends("a", 2, 3);
    b.assert_sends("c", 3, 0);
    c.assert_sends("a", 1, 1);
    b.agent.shutdown(LONG).unwrap();
    for worker in [&a, &c] {
        worker.wait_for(2);
    }
    a.assert_sends("c", 1, 2);
    c.assert_sends("a", 1, 1);
    a.agent.shutdown(LONG).unwrap();
    c.agent.shutdown(LONG).unwrap();
}

#[test]
fn an_agent_tells_the_devices_and_maps_that_its_group_has_settled() {
    let store = store();
    let a = join(&store, "a", 0, &[("b", &[(0, 1), (3, 2)])]);
    let b = join(&store, "b", 1, &[("a", &[(0, 2)])]);
    a.wait_for(2);
    let map = |pairs: &[(u32, u32)]| DeviceMap::new(pairs.iter().copied()).unwrap();
    let devices = |indices: &[u32]| -> Vec<Device> {
        indices.iter().map(|index| Device::from(*index)).collect()
    };
    // The devices in the worker's maps, and the targets of the other worker's map.
    assert_eq!(a.agent.devices(), devices(&[0, 2, 3]));
    assert_eq!(b.agent.devices(), devices(&[0, 1, 2]));
    assert_eq!(
        a.agent.reverse_maps(),
        BTreeMap::from([("b".to_owned(), map(&[(2, 0)]))])
    );
    assert_eq!(
        b.agent.reverse_maps(),
        BTreeMap::from([("a".to_owned(), map(&[(1, 0), (2, 3)]))])
    );
    // Each agent knows its own data and that of the other worker, by name and by id.
    for agent in [&a.agent, &b.agent] {
        let infos = agent.device_infos("a").unwrap();
        assert_eq!(infos, agent.device_infos(0).unwrap());
        assert_eq!((infos.device_count, infos.devices.len()), (4, 0));
        assert_eq!(infos.device_maps["b"], map(&[(0, 1), (3, 2)]));
    }
    assert!(!a.agent.is_static_group());
    let unknown = a.agent.device_infos("c").unwrap_err();
    assert_eq!(unknown.kind, RpcErrorKind::UnknownWorker);
    b.agent.shutdown(LONG).unwrap();
    a.wait_for(1);
    // The map of the other worker was removed with it; the map of this worker stays.
    assert_eq!(a.agent.reverse_maps(), BTreeMap::new());
    assert_eq!(a.agent.devices(), devices(&[0, 3]));
    a.agent.shutdown(LONG).unwrap();
}

#[test]
fn without_a_device_backend_a_map_is_refused_and_the_error_says_why() {
    let mut options = RpcOptions::default();
    let map = DeviceMap::new([(0, 0)]).unwrap();
    options.device_maps.insert("w0".to_owned(), map);
    let builder = RpcAgent::builder("w0").rank(0).world_size(1).store(store());
    let error = builder.options(options).connect().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::DeviceMap);
    let text =
        "device count = 0\nw0 counts no accelerators: it finds none, or has no device backend";
    assert!(error.message.contains(text), "{error}");
    assert!(
        error.message.contains("RpcAgentBuilder::device_backend"),
        "{error}"
    );
}
