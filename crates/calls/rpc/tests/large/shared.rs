//! Code of both processes: paths for bytes, and tensors that are nearly empty.

use bytes::Bytes;
use memmap2::{Advice, MmapOptions};
use rdzv_rpc::{Arena, Method, RpcError, Tensor};
use rdzv_rpc_proto::tensor::DataType;
use serde::{Deserialize, Serialize};

/// Bytes that are not zero, by their offset.
pub(crate) type Marks = Vec<(u64, u8)>;

/// Returns the length of a tensor and the bytes in it that are not zero.
pub(crate) const EXAMINE: Method<Tensor, (u64, Marks)> = Method::new("large.examine");

/// Returns a tensor of this length with these marks.
pub(crate) const MAKE: Method<(Path, u64, Marks), Tensor> = Method::new("large.make");

/// A path for bytes from one worker to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Path {
    /// The receiver reads the memory of the sender.
    Memory,
    /// The receiver maps the memory of the sender.
    Arena,
    /// Through rings in shared memory.
    Ring,
    /// Through a Unix socket.
    Unix,
    /// Through TCP.
    Tcp,
}

/// Creates a tensor of zeros and marks; unwritten memory costs nothing.
pub(crate) fn tensor(path: Path, length: u64, marks: &Marks) -> Tensor {
    let length = usize::try_from(length).expect("64 bits");
    let bytes = if path == Path::Arena {
        let arena = Arena::new(length).expect("an arena");
        let mut block = arena.allocate(length).expect("a block of it");
        mark(block.as_mut(), marks);
        Bytes::from(block)
    } else {
        let map = MmapOptions::new().len(length).map_anon();
        let mut map = map.expect("address space");
        // A page fault for each 4 KiB takes minutes on some virtual machines. The advice only makes
        // this faster: a system without large pages may refuse it.
        let _ = map.advise(Advice::HugePage);
        mark(&mut map, marks);
        Bytes::from_owner(map)
    };
    Tensor::from_bytes(DataType::U8, [length], bytes).expect("as long as its shape says")
}

fn mark(bytes: &mut [u8], marks: &Marks) {
    for (offset, mark) in marks {
        bytes[usize::try_from(*offset).expect("64 bits")] = *mark;
    }
}

/// Checks each byte of a tensor.
pub(crate) fn examined(tensor: &Tensor) -> Result<(u64, Marks), RpcError> {
    const PIECE: usize = 1 << 20;
    let zeros = vec![0_u8; PIECE];
    let bytes = tensor.as_slice::<u8>()?;
    let mut marks = Marks::new();
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        // This comparison is fast even without optimisation, unlike a loop.
        if *piece != zeros[..piece.len()] {
            let begin = (number * PIECE) as u64;
            let offsets = (begin..).zip(piece);
            marks.extend(
                offsets.filter_map(|(offset, byte)| (*byte != 0).then_some((offset, *byte))),
            );
        }
    }
    Ok((bytes.len() as u64, marks))
}
