use proptest::prelude::*;
use rdzv_rpc_proto::device::{DeviceData, DeviceMap, Node, device_list, reverse_maps};

use super::*;
use crate::RpcErrorKind;
use crate::device::testing::FakeDevices;
use crate::message::Direction;
use crate::tensor::{Device, Tensor};

const NO_MAP: &str = "TensorPipe RPC backend only supports CPU tensors by default, please move your \
    tensors to CPU before sending them over RPC, or call `set_device_map` on \
    `RpcOptions` to explicitly configure device mapping. ";

fn cuda(index: u32) -> Device {
    Device::accelerator(index)
}

fn on(device: Device, backend: &Arc<dyn DeviceBackend>) -> Tensor {
    let numbers = Tensor::from_vec(vec![1_i16, 2, 3, 4, 5, 6], [2, 3]).unwrap();
    if device.is_cpu() {
        return numbers;
    }
    numbers.to_device(device, backend).unwrap()
}

fn map(pairs: &[(Device, Device)]) -> DeviceMap {
    DeviceMap::new(pairs.iter().copied()).unwrap()
}

/// Sends a tensor on a device through a device map; returns where it arrives.
fn sent(
    device: Device,
    map: Option<&DeviceMap>,
    direction: Direction,
    devices: Option<&[Device]>,
) -> Result<Device, RpcError> {
    let backend = FakeDevices::shared(4);
    let peer = worker("peer");
    let mut outgoing = match direction {
        Direction::Request => Outgoing::request(&peer),
        Direction::Response => Outgoing::response(&peer),
    };
    outgoing = outgoing.with_device_map(map);
    if let Some(devices) = devices {
        outgoing = outgoing.with_devices(devices);
    }
    let tensor = on(device, &backend);
    let payload = encode(&tensor, &mut outgoing)?;
    let arrived: Tensor = decoded_with(&payload, &FakeDevices::shared(4))?;
    assert_eq!(
        arrived.to_cpu().unwrap().as_slice::<i16>().unwrap()[..],
        [1, 2, 3, 4, 5, 6]
    );
    Ok(arrived.device())
}

fn request(device: Device, map: Option<&DeviceMap>) -> Result<Device, RpcError> {
    sent(device, map, Direction::Request, None)
}

#[test]
fn a_request_goes_where_the_map_says() {
    let map = map(&[
        (cuda(0), cuda(3)),
        (cuda(2), Device::CPU),
        (Device::CPU, cuda(1)),
    ]);
    assert_eq!(request(cuda(0), Some(&map)), Ok(cuda(3)));
    assert_eq!(request(cuda(2), Some(&map)), Ok(Device::CPU));
    assert_eq!(request(Device::CPU, Some(&map)), Ok(cuda(1)));
}

#[test]
fn the_cpu_stays_the_cpu_unless_it_is_mapped() {
    let map = map(&[(cuda(0), cuda(3))]);
    assert_eq!(request(Device::CPU, Some(&map)), Ok(Device::CPU));
    assert_eq!(request(Device::CPU, None), Ok(Device::CPU));
}

#[test]
fn without_a_map_only_the_cpu_is_sent() {
    for direction in [Direction::Request, Direction::Response] {
        let error = sent(cuda(1), None, direction, None).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::DeviceMap);
        assert_eq!(
            error.message,
            format!(
                "{NO_MAP}{direction} device mapping is not available for destination peer, but \
                 found tensor on device: cuda:1"
            )
        );
    }
}

#[test]
fn a_result_without_a_map_is_refused_for_that_whatever_devices_there_are() {
    for list in [&[][..], &[cuda(0)], &[cuda(1)]] {
        let error = sent(cuda(1), None, Direction::Response, Some(list)).unwrap_err();
        assert_eq!(
            error.message,
            format!(
                "{NO_MAP}Response device mapping is not available for destination peer, but found \
                 tensor on device: cuda:1"
            )
        );
    }
}

#[test]
fn a_device_that_the_map_has_not_is_refused() {
    let error = request(cuda(1), Some(&map(&[(cuda(0), cuda(3))]))).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::DeviceMap);
    assert_eq!(
        error.message,
        format!(
            "{NO_MAP}Request device mapping is not available for destination peer for device cuda:1 \
             but received a tensor on that device."
        )
    );
}

#[test]
fn a_result_on_a_device_outside_of_the_list_is_refused() {
    let map = map(&[(cuda(0), cuda(3)), (cuda(2), cuda(2))]);
    let respond =
        |device, list: &[Device]| sent(device, Some(&map), Direction::Response, Some(list));
    let error = respond(cuda(2), &[cuda(0), cuda(1)]).unwrap_err();
    assert!(error.message.starts_with(
        "RPC detected that a user-function output tensor on device cuda:2. This device is not one of \
         the input tensor devices: [cuda:0, cuda:1], which is not yet supported. "
    ));
    assert_eq!(respond(cuda(0), &[cuda(0)]), Ok(cuda(3)));
    assert_eq!(respond(Device::CPU, &[]), Ok(Device::CPU));
}

#[test]
fn a_tensor_that_went_out_comes_back_to_its_device() {
    let data = |maps: &[(&str, DeviceMap)]| DeviceData {
        device_count: 4,
        device_maps: maps
            .iter()
            .map(|(name, map)| ((*name).to_owned(), map.clone()))
            .collect(),
        devices: Vec::new(),
    };
    let a = data(&[("b", map(&[(cuda(0), cuda(1)), (cuda(3), cuda(0))]))]);
    let b = data(&[("a", map(&[(cuda(1), cuda(2))]))]);
    let nodes = [
        Node {
            name: "a",
            data: &a,
        },
        Node {
            name: "b",
            data: &b,
        },
    ];
    let reverse = reverse_maps("b", &nodes);
    for index in [0, 3] {
        let there = request(cuda(index), a.device_maps.get("b")).unwrap();
        let back = sent(there, reverse.get("a"), Direction::Response, None).unwrap();
        assert_eq!(back, cuda(index));
    }
    // Requests of b use the map of b, not the reverse of a's map.
    assert_eq!(request(cuda(1), b.device_maps.get("a")), Ok(cuda(2)));
}

#[test]
fn tensors_of_one_message_go_to_their_own_devices() {
    let (backend, peer) = (FakeDevices::shared(4), worker("peer"));
    let map = map(&[(cuda(0), cuda(1)), (cuda(1), cuda(0))]);
    let sent = vec![
        on(cuda(0), &backend),
        on(Device::CPU, &backend),
        on(cuda(1), &backend),
    ];
    let mut outgoing = Outgoing::request(&peer).with_device_map(Some(&map));
    let payload = encode(&sent, &mut outgoing).unwrap();
    let arrived: Vec<Tensor> = decoded_with(&payload, &backend).unwrap();
    let devices: Vec<_> = arrived.iter().map(Tensor::device).collect();
    assert_eq!(devices, [cuda(1), Device::CPU, cuda(0)]);
}

#[test]
fn views_of_device_memory_are_collected_and_arrive_aliased() {
    let (backend, peer) = (FakeDevices::shared(1), worker("peer"));
    let same = map(&[(cuda(0), cuda(0))]);
    let matrix = on(cuda(0), &backend);
    let columns = matrix.slice(1, 1..3).unwrap();
    let column = matrix.select(1, 1).unwrap();
    let mut outgoing = Outgoing::request(&peer).with_device_map(Some(&same));
    let payload = encode(&(&columns, &column), &mut outgoing).unwrap();
    assert_eq!(payload.parts.len(), 1);
    assert_eq!(payload.parts[0].len(), 8);
    let (columns, column): (Tensor, Tensor) = decoded_with(&payload, &backend).unwrap();
    assert!(columns.storage().is(column.storage()));
    assert_eq!(columns.as_slice::<i16>().unwrap()[..], [2, 3, 5, 6]);
    assert_eq!(column.as_slice::<i16>().unwrap()[..], [2, 5]);
}

#[test]
fn a_device_that_the_receiver_has_not_is_its_error() {
    let (backend, peer) = (FakeDevices::shared(4), worker("peer"));
    let far = map(&[(cuda(0), cuda(7))]);
    let mut outgoing = Outgoing::request(&peer).with_device_map(Some(&far));
    let payload = encode(&on(cuda(0), &backend), &mut outgoing).unwrap();
    for backend in [backend, CpuOnly::shared()] {
        let error = decoded_with::<Tensor>(&payload, &backend).unwrap_err();
        assert!(
            error.message.starts_with("device cuda:7 does not exist"),
            "{error}"
        );
        assert_eq!(error.worker, Some(worker("caller")));
    }
}

/// Generates device maps for each pair of three workers.
/// A map takes the first 0 to 4 of a worker's four devices to different devices.
fn any_maps() -> impl Strategy<Value = [[Vec<u32>; 3]; 3]> {
    let targets = Just((0..4).collect::<Vec<u32>>()).prop_shuffle();
    let map = (targets, 0..5_usize).prop_map(|(mut targets, len)| {
        targets.truncate(len);
        targets
    });
    let row = || [map.clone(), map.clone(), map.clone()];
    [row(), row(), row()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn with_any_maps_between_three_workers_results_come_back_to_where_arguments_were(
        maps in any_maps(),
        leaver in 0..3_usize,
    ) {
        let names = ["a", "b", "c"];
        let data: Vec<DeviceData> = maps
            .iter()
            .map(|row| DeviceData {
                device_count: 4,
                device_maps: names
                    .iter()
                    .zip(row)
                    .map(|(name, targets)| {
                        let pairs = (0..).zip(targets.iter().copied());
                        ((*name).to_owned(), DeviceMap::new(pairs).unwrap())
                    })
                    .collect(),
                devices: Vec::new(),
            })
            .collect();
        // All three workers, then the two that remain when one has left.
        for members in [vec![0, 1, 2], (0..3).filter(|member| *member != leaver).collect()] {
            let nodes: Vec<Node<'_>> = members
                .iter()
                .map(|&member| Node { name: names[member], data: &data[member] })
                .collect();
            for &caller in &members {
                for &callee in &members {
                    let map = data[caller].device_maps.get(names[callee]);
                    let reverse = reverse_maps(names[callee], &nodes);
                    let list = device_list(&data[callee], &reverse);
                    for index in 0..4 {
                        let mapped = maps[caller][callee].get(index as usize);
                        let there = request(cuda(index), map);
                        prop_assert_eq!(there.clone().ok(), mapped.map(|index| cuda(*index)));
                        let Ok(there) = there else { continue };
                        let back = reverse.get(names[caller]);
                        let back = sent(there, back, Direction::Response, Some(&list));
                        prop_assert_eq!(back, Ok(cuda(index)));
                    }
                }
            }
        }
    }
}
