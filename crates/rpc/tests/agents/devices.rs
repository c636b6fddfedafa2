//! Tensors of accelerators between workers that have maps of their own.

use std::sync::Arc;

use rdzv_rpc::device::DeviceBackend;
use rdzv_rpc::device::testing::FakeDevices;
use rdzv_rpc::{AgentOptions, CallContext, Membership, Method, Methods, RpcAgent, Tensor};
use rdzv_rpc_proto::device::{Device, DeviceData, DeviceMap};
use rdzv_store::Store;

use super::{LONG, store, wait_until};

/// Gives the tensor back, and says on which device it came.
const BACK: Method<Tensor, (Tensor, u32)> = Method::new("back");

type Maps<'a> = &'a [(&'a str, &'a [(u32, u32)])];

struct Worker {
    agent: RpcAgent,
    devices: Arc<dyn DeviceBackend>,
}

fn join(store: &Arc<dyn Store>, name: &str, rank: u32, maps: Maps<'_>) -> Worker {
    let devices = FakeDevices::shared(4);
    let methods = Methods::new().with(BACK, async |_: CallContext, tensor: Tensor| {
        let index = tensor.device().index().ok_or("it came to the CPU")?;
        Ok::<_, &str>((tensor, index))
    });
    let maps = maps.iter().map(|(target, pairs)| {
        let map = DeviceMap::new(pairs.iter().copied()).unwrap();
        ((*target).to_owned(), map)
    });
    let options = AgentOptions {
        devices: DeviceData {
            device_count: 4,
            device_maps: maps.collect(),
            ..DeviceData::default()
        },
        backend: Arc::clone(&devices),
        ..AgentOptions::default()
    };
    let membership = Membership::dynamic();
    let agent = RpcAgent::init(name, rank, membership, Arc::clone(store), methods, options);
    Worker {
        agent: agent.unwrap(),
        devices,
    }
}

impl Worker {
    /// A tensor on this device arrives there on that one, and comes back to where it was.
    fn assert_sends(&self, to: &str, from: u32, arrives: u32) {
        let device = Device::accelerator(from);
        let tensor = Tensor::from_vec(vec![1_i16, 2, 3], [3]).unwrap();
        let tensor = tensor.to_device(device, &self.devices).unwrap();
        let (back, index) = self.agent.call_sync(to, BACK, &tensor).unwrap();
        assert_eq!((index, back.device()), (arrives, device), "{to}");
        let numbers = back.to_cpu().unwrap();
        assert_eq!(numbers.as_slice::<i16>().unwrap()[..], [1, 2, 3]);
    }

    fn wait_for(&self, count: usize) {
        wait_until("all are seen", || self.agent.workers().len() == count);
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
