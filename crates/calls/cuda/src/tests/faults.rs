//! The sentence for each bad input and each failure of the driver.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rdzv_rpc::WorkerId;
use rdzv_rpc::device::{Device, DeviceBackend, DeviceLender, Loan};
use rdzv_rpc::tensor::Storage;
use rdzv_rpc_proto::rref::Member;
use rdzv_shm::{Arena, Leases};

use super::fake::{DEVICES, Fake, World, fault};
use crate::backend::Cuda;
use crate::driver::{CudaStream, Fault, Pointer};
use crate::lending::CudaLimits;
use crate::state::Shared;
use crate::wire::{self, Card, LENGTH, Sent};

const ME: Member = Member::new(WorkerId(0), 1);
const PEER: Member = Member::new(WorkerId(1), 1);

fn backend() -> (Cuda<Fake>, Fake) {
    let world = World::new(1);
    let fake = Fake { world, process: 0 };
    (of(&fake, 0), fake)
}

fn of(fake: &Fake, process: u32) -> Cuda<Fake> {
    let fake = Fake {
        process,
        ..fake.clone()
    };
    Cuda::of(Arc::new_cyclic(|own| {
        let mut shared = Shared::own(own, fake, DEVICES, CudaLimits::default());
        shared.has_threads = false;
        shared
    }))
}

fn fail(fake: &Fake, function: &'static str, fault: Fault) {
    fake.world.lock().failing.insert(function, fault);
}

/// Returns the error of an allocation of 4 KiB.
fn allocation(device: u32, with: Option<(&'static str, Fault)>) -> String {
    let (cuda, fake) = backend();
    if let Some((function, fault)) = with {
        fail(&fake, function, fault);
    }
    let refused = cuda.alloc(Device::accelerator(device), 4096);
    refused.unwrap_err().to_string()
}

fn tensor(cuda: &Cuda<Fake>, fake: &Fake) -> Storage {
    let mut world = fake.world.lock();
    let address = world.tensor(fake.process, 4096);
    let stream = world.new_stream(fake.process);
    drop(world);
    let memory = (Pointer(address), 4096);
    let device = Device::accelerator(0);
    let stream = Some(CudaStream(stream));
    cuda.import(device, memory, stream, Box::new(())).unwrap()
}

#[test]
fn a_host_without_a_driver_is_named() {
    let fault = Fault::NoDriver("cannot load libcuda.so.1".to_owned());
    assert_eq!(
        allocation(0, Some(("cuStreamCreate", fault))),
        "cannot allocate 4096 bytes on cuda:0: this host has no CUDA driver: cannot load \
         libcuda.so.1\nhelp: install the NVIDIA driver; in a container, start it with the GPUs \
         (docker run --gpus all)"
    );
}

#[test]
fn an_old_driver_is_named_with_the_version_that_is_needed() {
    assert_eq!(
        allocation(0, Some(("cuStreamCreate", Fault::TooOld(10_020)))),
        "cannot allocate 4096 bytes on cuda:0: the driver supports CUDA 10.2, but rdzv needs CUDA \
         11.2 or newer\nhelp: update the NVIDIA driver, or send tensor.cpu()"
    );
}

#[test]
fn a_forked_child_refuses() {
    assert_eq!(
        allocation(0, Some(("cuStreamCreate", Fault::Forked))),
        "cannot allocate 4096 bytes on cuda:0: this process was forked after its parent had used \
         CUDA, which does not survive a fork\nhelp: start worker processes with the method \
         \"spawn\", or fork before the first use of CUDA"
    );
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    assert_eq!(
        allocation(2, None),
        "device cuda:2 does not exist: accelerators of this worker: 2\nhelp: check \
         CUDA_VISIBLE_DEVICES and the device map"
    );
}

#[test]
fn a_full_device_is_named_with_the_memory_of_rdzv() {
    let fault = fault("cuMemAllocFromPoolAsync", 2, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(
        allocation(1, Some(("cuMemAllocFromPoolAsync", fault))),
        "cannot allocate 4096 bytes on cuda:1 beside 0 bytes of received tensors and 0 bytes for \
         peers: cuMemAllocFromPoolAsync: CUDA_ERROR_OUT_OF_MEMORY\nhelp: free tensors on the \
         device, or send smaller tensors"
    );
}

#[test]
fn a_tensor_whose_context_is_gone_is_refused_before_anything_is_sent() {
    let (cuda, _) = backend();
    let stream = Some(CudaStream(77));
    let memory = (Pointer(1), 8);
    let refused = cuda.import(Device::accelerator(0), memory, stream, Box::new(()));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "cannot read a tensor on cuda:0, because the CUDA context or stream that made it has \
         ended: cuEventRecord: CUDA_ERROR_INVALID_HANDLE"
    );
}

/// Shows a card of this namespace to a peer; returns its answer.
fn meet(namespace: String, fault: Option<Fault>) -> Result<(), String> {
    let (cuda, fake) = backend();
    if let Some(fault) = fault {
        fail(&fake, "cuIpcOpenMemHandle_v2", fault);
    }
    let arena = Arena::new(LENGTH).unwrap();
    let mut block = arena.allocate(LENGTH).unwrap();
    let handle = Sent::new(&[0; 64]);
    let card = Card {
        process: 1,
        namespace,
        segment: 1,
        handle,
        target: 0,
    };
    wire::write(&card, block.as_mut()).unwrap();
    cuda.meet(&block.freeze(), PEER)
}

const CONTAINERS: &str = "\nhelp: run all workers of a host in one PID and IPC namespace \
                          (docker run --pid=host --ipc=host)";

#[test]
fn a_refusal_of_cuda_ipc_is_named() {
    let name = "CUDA_ERROR_MAP_BUFFER_OBJECT_FAILED";
    let refused = meet(
        wire::namespace(),
        Some(fault("cuIpcOpenMemHandle_v2", 205, name)),
    );
    let text = format!("CUDA IPC was refused: cuIpcOpenMemHandle_v2: {name}{CONTAINERS}");
    assert_eq!(refused, Err(text));
}

#[test]
fn a_refusal_with_a_remedy_of_its_own_names_no_containers() {
    let fault = fault("cuIpcOpenMemHandle_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY");
    let refused = meet(wire::namespace(), Some(fault)).unwrap_err();
    let help = "\nhelp: free tensors on the device, or send smaller tensors";
    assert!(refused.ends_with(help), "{refused}");
}

#[test]
fn processes_in_different_pid_namespaces_are_named() {
    let refused = meet("pid:[1]".to_owned(), None).unwrap_err();
    let text = "the workers are in different PID namespaces, for which CUDA IPC does not work";
    assert_eq!(refused, format!("{text}{CONTAINERS}"));
}

#[test]
fn bytes_that_are_not_shared_are_no_card() {
    let (cuda, _) = backend();
    let refused = cuda.meet(&bytes::Bytes::from(vec![0; LENGTH]), PEER);
    let text = "the workers do not share host memory, which shows when a read ends";
    assert_eq!(refused, Err(text.to_owned()));
}

#[test]
fn a_refused_peer_gets_copies_and_is_asked_again_after_it_was_lost() {
    let (cuda, fake) = backend();
    let storage = tensor(&cuda, &fake);
    let lend = || {
        let memory = storage.memory().unwrap();
        cuda.lend(memory, 0..4096, PEER, Device::accelerator(0))
    };
    let Ok(Loan::Unmet(card)) = lend() else {
        panic!("the peer has met nothing");
    };
    assert!(matches!(lend(), Ok(Loan::Copied)), "it was asked");
    cuda.met(&card, PEER, Err("no IPC here".to_owned()));
    assert!(matches!(lend(), Ok(Loan::Copied)), "it has refused");
    let facts = cuda.facts();
    let refused = ("cuda.staged.1".to_owned(), "no IPC here".to_owned());
    assert!(facts.contains(&refused), "{facts:?}");
    cuda.lost(PEER);
    assert!(matches!(lend(), Ok(Loan::Unmet(_))), "it is another try");
}

#[test]
fn a_description_outside_of_its_segment_is_refused() {
    let (lender, fake) = backend();
    let borrower = of(&fake, 1);
    let (left, right) = UnixStream::pair().unwrap();
    let [left, right] = [left, right].map(|stream| {
        stream.set_nonblocking(true).unwrap();
        Leases::new(stream.into())
    });
    let storage = tensor(&lender, &fake);
    let memory = storage.memory().unwrap();
    let lend = || lender.lend(memory, 0..4096, PEER, Device::accelerator(1));
    let Ok(Loan::Unmet(card)) = lend() else {
        panic!("the peer has met nothing");
    };
    let leased = right.open(left.grant(&card).unwrap(), || {}).unwrap();
    borrower.meet(&leased, ME).unwrap();
    lender.met(&card, PEER, Ok(()));
    let Ok(Loan::Described(described)) = lend() else {
        panic!("the peer has met the segment");
    };
    let leased = right.open(left.grant(&described).unwrap(), || {}).unwrap();
    let borrow = |len| borrower.borrow(&leased, len, Device::accelerator(1), ME);
    let refused = borrow((64 << 20) + 1).unwrap_err().to_string();
    assert_eq!(
        refused,
        "cannot read a tensor that the sender lends: 67108865 bytes at 0 are not in a segment of \
         67108864 bytes"
    );
    assert_eq!(borrow(4096).unwrap().0.len(), 4096);
    let facts: Vec<String> = lender.facts().into_iter().map(|fact| fact.0).collect();
    let shown = [
        "cuda.driver",
        "cuda:0.pool_bytes",
        "cuda:0.lent_bytes",
        "cuda:0.received_bytes",
        "cuda.segments_of_peers",
    ];
    assert_eq!(facts, shown);
}
