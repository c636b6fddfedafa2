//! Tensors of more than 4 GiB.

#[path = "../../../calls/rpc/tests/large/shared.rs"]
mod shared;

use rdzv_rpc::{Methods, RpcError, Tensor, blocking};

use shared::{EXAMINE, MAKE, Marks, Path, examined, tensor};

pub(crate) fn with_methods(methods: Methods) -> Methods {
    methods
        .with(EXAMINE, blocking(|tensor: Tensor| examined(&tensor)))
        .with(
            MAKE,
            blocking(|(path, length, marks): (Path, u64, Marks)| {
                Ok::<_, RpcError>(tensor(path, length, &marks))
            }),
        )
}
