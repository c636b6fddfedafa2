//! Memory of Python objects, such as numpy arrays, torch tensors, `bytearray`.
//!
//! This is the only module of this crate with `unsafe`: it makes a slice from an address that an
//! object provides. There are three ways to get the address:
//!
//! | way | objects |
//! |---|---|
//! | `data_ptr()`, `numel()` and the like | `torch.Tensor` |
//! | buffer protocol | numpy arrays, `bytearray`, `memoryview`, `array.array`, arrow buffers |
//! | DLPack: its C exchange interface, or else `__dlpack__` | others: JAX, CuPy, bfloat16 arrays |
//!
//! Invariants of every [`Memory`]:
//!
//! - M1: `start` is the address of `bytes` bytes that stay in place while `owner` lives. The object
//!   has promised that: an exported buffer cannot be resized, a managed tensor lives until its
//!   deleter is called, and a referenced tensor keeps its storage. Without bytes, the address is
//!   never used.
//! - M2: `start` is aligned for the elements, and `bytes` is a multiple of their size. Both are
//!   checked here, except the alignment of memory that is read only as bytes ([`TensorMemory`]).
//! - M3: every bit pattern is a value of every [`Element`], so any bytes can be read as elements.
//! - M4: only memory that the object provides for writing is written. While an operation has the
//!   memory, the program must not touch it. This is the rule of every library that works on arrays
//!   without the interpreter's lock.
//! - M5: Python may write to memory that arrived with a call only if no other owner has it (see
//!   [`Received`]).

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::ptr::NonNull;

use bytes::Bytes;
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDeviceType};
use dlpark::python::{ImportRequest, ImportedDlpack};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyMemoryView};
use pyo3::{PyClass, ffi};
use rdzv_collective::{Element, ElementType, ReceiveBuffer, ReduceOp, SendBuffer};
use rdzv_rpc::{Arena, Block, is_leased};
use rdzv_shm::PooledBuffer;

use crate::argument::Object;
use crate::handle::Own;

/// Access of an operation to an argument's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Argument of a call, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) operation: &'static str,
    pub(crate) name: &'static str,
}

impl Argument {
    pub(crate) const fn new(operation: &'static str, name: &'static str) -> Self {
        Self { operation, name }
    }

    pub(crate) fn refused(self, what: impl fmt::Display) -> PyErr {
        PyValueError::new_err(format!("{self} {what}"))
    }

    fn mistyped(self, what: impl fmt::Display) -> PyErr {
        PyTypeError::new_err(format!("{self} {what}"))
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.operation, self.name)
    }
}

/// Element type of an array, with the operations that a group supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) element: ElementType,
    /// Number of elements (`element`) in one value of the array.
    lanes: usize,
    meaning: Meaning,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Number,
    /// A pair of floats.
    Complex,
    /// Bytes that are moved but not combined.
    Opaque,
}

const NUMBERS: &str = "bool, uint8 to uint64, int8 to int64, float16, bfloat16, float32, float64";

impl Kind {
    const OPAQUE: Self = Self::new(ElementType::U8, 1, Meaning::Opaque);

    const fn number(element: ElementType) -> Self {
        Self::new(element, 1, Meaning::Number)
    }

    const fn complex(element: ElementType) -> Self {
        Self::new(element, 2, Meaning::Complex)
    }

    const fn new(element: ElementType, lanes: usize, meaning: Meaning) -> Self {
        Self {
            element,
            lanes,
            meaning,
        }
    }

    /// Reads the format of a buffer, in the notation of the module `struct`.
    fn of_format(format: &CStr, size: usize) -> Result<Self, FormatError> {
        let text = format.to_str().unwrap_or_default();
        let (order, code) = match text.as_bytes() {
            [order @ (b'<' | b'>' | b'=' | b'@' | b'!'), rest @ ..] => (*order, rest),
            rest => (b'@', rest),
        };
        let foreign = if cfg!(target_endian = "little") {
            matches!(order, b'>' | b'!')
        } else {
            order == b'<'
        };
        use ElementType as E;
        let kind = match (code, size) {
            (b"?", 1) => Self::number(E::Bool),
            (b"B" | b"c", 1) => Self::number(E::U8),
            (b"b", 1) => Self::number(E::I8),
            (b"H", 2) => Self::number(E::U16),
            (b"h", 2) => Self::number(E::I16),
            (b"I" | b"L" | b"N", 4) => Self::number(E::U32),
            (b"i" | b"l" | b"n", 4) => Self::number(E::I32),
            (b"L" | b"Q" | b"N", 8) => Self::number(E::U64),
            (b"l" | b"q" | b"n", 8) => Self::number(E::I64),
            (b"e", 2) => Self::number(E::F16),
            (b"f", 4) => Self::number(E::F32),
            (b"d", 8) => Self::number(E::F64),
            (b"Zf" | b"F", 8) => Self::complex(E::F32),
            (b"Zd" | b"D", 16) => Self::complex(E::F64),
            _ => return Err(FormatError::Unknown(text.to_owned())),
        };
        if foreign && size > 1 {
            return Err(FormatError::ByteOrder);
        }
        Ok(kind)
    }

    fn of_dlpack(data_type: DLDataType) -> Option<Self> {
        let DLDataType { code, bits, lanes } = data_type;
        let mut types = TYPES.iter();
        let known = types.find(|one| (one.2, one.3) == (code, bits));
        // The float types with 8 bits have separate codes.
        let is_float8 = bits == 8 && code.0 >= DLDataTypeCode::FLOAT8_E3M4.0;
        let kind = known.map(|one| one.1);
        kind.or(is_float8.then_some(Self::OPAQUE))
            .filter(|_| lanes == 1)
    }
}

/// Types by the names of numpy and torch, with code and bits of DLPack.
///
/// The most frequent types come first.
const TYPES: [(&str, Kind, DLDataTypeCode, u8); 15] = {
    use DLDataTypeCode as Code;
    use ElementType as E;
    [
        ("float32", Kind::number(E::F32), Code::FLOAT, 32),
        ("bfloat16", Kind::number(E::Bf16), Code::BFLOAT, 16),
        ("float16", Kind::number(E::F16), Code::FLOAT, 16),
        ("int64", Kind::number(E::I64), Code::INT, 64),
        ("float64", Kind::number(E::F64), Code::FLOAT, 64),
        ("uint8", Kind::number(E::U8), Code::UINT, 8),
        ("int32", Kind::number(E::I32), Code::INT, 32),
        ("bool", Kind::number(E::Bool), Code::BOOL, 8),
        ("int8", Kind::number(E::I8), Code::INT, 8),
        ("int16", Kind::number(E::I16), Code::INT, 16),
        ("uint16", Kind::number(E::U16), Code::UINT, 16),
        ("uint32", Kind::number(E::U32), Code::UINT, 32),
        ("uint64", Kind::number(E::U64), Code::UINT, 64),
        ("complex64", Kind::complex(E::F32), Code::COMPLEX, 64),
        ("complex128", Kind::complex(E::F64), Code::COMPLEX, 128),
    ]
};

/// Types of torch whose values are opaque.
const FLOAT8: [&str; 5] = [
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
];

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = TYPES.iter().find(|one| one.1 == *self);
        formatter.write_str(known.map_or("float8", |one| one.0))
    }
}

enum FormatError {
    ByteOrder,
    Unknown(String),
}

/// Object that keeps memory in place.
enum Owner {
    #[expect(dead_code, reason = "keeps the tensor")]
    Tensor(Py<PyAny>),
    #[expect(dead_code, reason = "keeps the buffer exported")]
    Buffer(PyUntypedBuffer),
    #[expect(dead_code, reason = "keeps the managed tensor")]
    Dlpack(ImportedDlpack),
}

/// Memory of an array, for an operation.
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    kind: Kind,
    pub(crate) argument: Argument,
    _owner: Owner,
}

// SAFETY: M1 says that the memory stays for any thread. The owners can release their reference on
// any thread: pyo3 defers the release until a thread is attached, and the deleters of DLPack may be
// called by every thread.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` only gives shared slices of values without interior mutability.
unsafe impl Sync for Memory {}

impl Memory {
    /// Returns the memory of `object`, which is an argument of a call.
    ///
    /// # Errors
    ///
    /// `TypeError` if the object is not an array, or has a type that a group does not support.
    /// `ValueError` if the memory is not contiguous, not aligned, read-only although it must be
    /// written, or not in the memory of this host.
    pub(crate) fn of(
        object: Object<'_>,
        operation: &'static str,
        name: &'static str,
        access: Access,
    ) -> PyResult<Self> {
        let argument = Argument::new(operation, name);
        if let Some(memory) = Self::of_tensor(object, argument)? {
            return memory.aligned(format!("{name}.clone()"));
        }
        let memory = match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(object, buffer, argument, access),
            Err(error) => {
                if !object.hasattr(intern!(object.py(), "__dlpack__"))? {
                    return Err(argument.mistyped(format!(
                        "is {}, which is not an array: pass a numpy array, a torch tensor, a \
                         bytearray, or an object with __dlpack__ or a buffer ({error})",
                        object.get_type()
                    )));
                }
                Self::of_dlpack(object, argument, access)
            }
        }?;
        memory.aligned("numpy.require(x, requirements=\"A\")".to_owned())
    }

    /// Refuses memory that is not aligned for its elements.
    ///
    /// `instead` is what the caller should pass.
    fn aligned(self, instead: String) -> PyResult<Self> {
        let align = self.kind.element.size();
        if self.bytes > 0 && !self.start.as_ptr().addr().is_multiple_of(align) {
            return Err(self
                .argument
                .refused(format!("is not aligned for its elements; pass {instead}")));
        }
        Ok(self)
    }

    /// Returns the memory of a `torch.Tensor`; `None` if `object` is not a tensor.
    fn of_tensor(object: Object<'_>, argument: Argument) -> PyResult<Option<Self>> {
        let py = object.py();
        let Some(torch) = Torch::get(py)? else {
            return Ok(None);
        };
        if !object.is_instance(torch.tensor.bind(py))? {
            return Ok(None);
        }
        if !object.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
            let device = object.getattr(intern!(py, "device"))?;
            return Err(not_here(argument, &device.to_string()));
        }
        let data_type = object.getattr(intern!(py, "dtype"))?;
        let kind = torch.kind(&data_type).ok_or_else(|| {
            argument.mistyped(format!(
                "has dtype {data_type}; supported types are {NUMBERS}, complex64, complex128 and \
                 float8"
            ))
        })?;
        let contiguous = object.call_method0(intern!(py, "is_contiguous"))?;
        if !contiguous.is_truthy()? {
            let strides = object.call_method0(intern!(py, "stride"))?;
            let name = argument.name;
            return Err(argument.refused(format!(
                "is not contiguous (strides {strides}); pass {name}.contiguous()"
            )));
        }
        let elements: usize = object.call_method0(intern!(py, "numel"))?.extract()?;
        let address: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let bytes = elements * kind.lanes * kind.element.size();
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        if start.is_none() && bytes > 0 {
            return Err(argument.refused("has no memory, because it is a tensor without storage"));
        }
        Ok(Some(Self {
            start: start.unwrap_or(NonNull::dangling()),
            bytes,
            kind,
            argument,
            _owner: Owner::Tensor(object.clone().unbind()),
        }))
    }

    fn of_buffer(
        object: Object<'_>,
        buffer: PyUntypedBuffer,
        argument: Argument,
        access: Access,
    ) -> PyResult<Self> {
        let kind = match Kind::of_format(buffer.format(), buffer.item_size()) {
            Ok(kind) => kind,
            Err(FormatError::ByteOrder) => {
                return Err(argument.mistyped(
                    "has a byte order other than this machine's; pass x.astype(x.dtype.newbyteorder(\"=\"))",
                ));
            }
            Err(FormatError::Unknown(format)) => {
                let data_type = object.getattr(intern!(object.py(), "dtype"));
                let data_type = data_type.map_or(format, |data_type| data_type.to_string());
                return Err(argument.mistyped(format!(
                    "has dtype {data_type}; supported types are {NUMBERS}, complex64 and complex128"
                )));
            }
        };
        if !buffer.is_c_contiguous() {
            return Err(argument.refused(format!(
                "is not contiguous (strides {:?}); pass numpy.ascontiguousarray(x)",
                buffer.strides()
            )));
        }
        if access == Access::Write && buffer.readonly() {
            return Err(read_only(argument));
        }
        let bytes = buffer.len_bytes();
        Ok(Self {
            start: NonNull::new(buffer.buf_ptr().cast()).unwrap_or(NonNull::dangling()),
            bytes,
            kind,
            argument,
            _owner: Owner::Buffer(buffer),
        })
    }

    fn of_dlpack(object: Object<'_>, argument: Argument, access: Access) -> PyResult<Self> {
        let request = ImportRequest::new(object.as_borrowed())?;
        let here =
            |device: DLDeviceType| matches!(device, DLDeviceType::CPU | DLDeviceType::CUDAHOST);
        if let Ok(device) = request.device()
            && !here(device.device_type)
        {
            let name = match device.device_type {
                DLDeviceType::CUDA => format!("cuda:{}", device.device_id),
                other => format!("DLPack device {}:{}", other.0, device.device_id),
            };
            return Err(not_here(argument, &name));
        }
        let imported = request.import(None, None).map_err(|error| {
            let data_type = object.getattr(intern!(object.py(), "dtype"));
            let data_type = data_type.map_or_else(|_| "a dtype".to_owned(), |one| one.to_string());
            argument.mistyped(format!(
                "has {data_type}, which it does not export ({error}); supported types are \
                 {NUMBERS}, complex64 and complex128"
            ))
        })?;
        let bad = |error: dlpark::tensor::Error| {
            argument.refused(format!("has an invalid DLPack form: {error}"))
        };
        let tensor = imported.validate().map_err(bad)?;
        if !here(tensor.device().device_type) {
            return Err(not_here(argument, "another device"));
        }
        let kind = Kind::of_dlpack(tensor.dtype()).ok_or_else(|| {
            argument.mistyped(format!(
                "has the DLPack type {:?}; supported types are {NUMBERS}, complex64, complex128 \
                 and float8",
                tensor.dtype()
            ))
        })?;
        if !tensor.is_compact().map_err(bad)? {
            return Err(argument.refused(format!(
                "is not contiguous (strides {:?}); pass a contiguous copy",
                tensor.strides().unwrap_or_default()
            )));
        }
        if access == Access::Write && imported.flags().contains(DlpackFlags::READ_ONLY) {
            return Err(read_only(argument));
        }
        let bytes = tensor.num_bytes();
        let start = tensor.data_ptr().cast_mut().cast::<u8>();
        // The producer specifies that its values begin there, inside one allocation.
        let start = start.wrapping_add(usize::try_from(tensor.byte_offset()).unwrap_or(usize::MAX));
        Ok(Self {
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            bytes,
            kind,
            argument,
            _owner: Owner::Dlpack(imported),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Refuses an operator that values of this type do not support.
    pub(crate) fn check(&self, op: ReduceOp) -> PyResult<()> {
        let Self { kind, argument, .. } = self;
        let accepted = match kind.meaning {
            Meaning::Number if kind.element.allows(op) => return Ok(()),
            Meaning::Complex if matches!(op, ReduceOp::Sum | ReduceOp::Average) => return Ok(()),
            _ if op.is_for_floats() => "float16, bfloat16, float32, float64",
            _ if matches!(op, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor) => {
                "bool and the integers"
            }
            _ if matches!(op, ReduceOp::Average) => "all types but bool and float8",
            _ if matches!(op, ReduceOp::Sum) => "all types but float8",
            _ => NUMBERS,
        };
        Err(argument.mistyped(format!(
            "has dtype {kind}, which cannot be reduced by {op}; supported types are {accepted}"
        )))
    }

    /// Refuses memory of another type.
    ///
    /// `self` is the memory of the argument that comes first.
    pub(crate) fn check_same_kind(&self, other: &Self) -> PyResult<()> {
        if self.kind == other.kind {
            return Ok(());
        }
        Err(self.argument.refused(format!(
            "has dtype {}, but {} has dtype {}; both must be the same",
            self.kind, other.argument.name, other.kind
        )))
    }

    /// Returns the number of values of the array.
    pub(crate) fn len(&self) -> usize {
        self.bytes / self.kind.element.size() / self.kind.lanes
    }

    /// Returns the number of elements in one value of the array.
    pub(crate) fn lanes(&self) -> usize {
        self.kind.lanes
    }

    /// `true` if both share a byte.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (own, theirs) = (self.start.as_ptr().addr(), other.start.as_ptr().addr());
        own < theirs + other.bytes && theirs < own + self.bytes && self.bytes > 0 && other.bytes > 0
    }

    /// `true` if `other` is the `index`-th of `count` equal parts of this memory.
    pub(crate) fn has_part(&self, other: &Self, index: usize, count: usize) -> bool {
        let each = self.bytes / count;
        other.bytes == each
            && other.start.as_ptr().addr() == self.start.as_ptr().addr() + index * each
    }

    /// Returns the elements; `T` must be the type of the memory.
    pub(crate) fn values<T: Element>(&self) -> &[T] {
        assert_eq!(T::TYPE, self.kind.element, "elements of another type");
        // SAFETY: M1 to M3. M4: no code writes to it while an operation reads it.
        unsafe { std::slice::from_raw_parts(self.first(), self.bytes / size_of::<T>()) }
    }

    /// Returns the elements for writing; `T` must be the type of the memory.
    pub(crate) fn values_mut<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(T::TYPE, self.kind.element, "elements of another type");
        // SAFETY: M1 to M3. M4: it was provided for writing, and no other code touches it.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.bytes / size_of::<T>()) }
    }

    /// Returns the address of the first element.
    ///
    /// Without elements, the address is aligned but not in any memory.
    fn first<T>(&self) -> *mut T {
        match self.bytes {
            0 => NonNull::dangling().as_ptr(),
            _ => self.start.as_ptr().cast(),
        }
    }
}

impl SendBuffer for Memory {
    fn element(&self) -> ElementType {
        self.kind.element
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: as for `values`; bytes have no alignment.
        unsafe { std::slice::from_raw_parts(self.first(), self.bytes) }
    }
}

impl ReceiveBuffer for Memory {
    fn element(&self) -> ElementType {
        self.kind.element
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `values_mut`; bytes have no alignment.
        unsafe { std::slice::from_raw_parts_mut(self.first(), self.bytes) }
    }
}

fn read_only(argument: Argument) -> PyErr {
    argument
        .refused("is read-only, but the operation writes to it; pass a copy, e.g. numpy.array(x)")
}

fn not_here(argument: Argument, device: &str) -> PyErr {
    let Argument { operation, name } = argument;
    PyValueError::new_err(format!(
        "{operation}: {name} is on {device}; rdzv supports only CPU tensors here. Pass \
         {name}.cpu(), or use cpu:rdzv,cuda:nccl for process groups"
    ))
}

/// Types of torch, once it is loaded.
struct Torch {
    tensor: Py<PyAny>,
    data_types: Vec<(Py<PyAny>, Kind)>,
}

impl Torch {
    /// Returns the types of torch, if this process has loaded torch.
    fn get(py: Python<'_>) -> PyResult<Option<&'static Self>> {
        static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        let modules = py.import("sys")?.getattr("modules")?;
        let Ok(torch) = modules.get_item("torch") else {
            return Ok(None);
        };
        // While torch is being imported, these attributes may be missing.
        let Ok(tensor) = torch.getattr("Tensor") else {
            return Ok(None);
        };
        let opaque = FLOAT8.iter().map(|name| (*name, Kind::OPAQUE));
        let types = TYPES.iter().map(|one| (one.0, one.1)).chain(opaque);
        let data_types =
            types.filter_map(|(name, kind)| Some((torch.getattr(name).ok()?.unbind(), kind)));
        let torch = Self {
            tensor: tensor.unbind(),
            data_types: data_types.collect(),
        };
        Ok(Some(TORCH.get_or_init(py, || torch)))
    }

    fn kind(&self, data_type: Object<'_>) -> Option<Kind> {
        let mut types = self.data_types.iter();
        types
            .find(|(known, _)| known.is(data_type))
            .map(|(_, kind)| *kind)
    }
}

/// Returns the bytes of an argument, shared with the sending connection.
///
/// The argument is `bytes`, a contiguous `memoryview`, a torch tensor or its memory, or a block of
/// an arena. Up to 4 KiB are copied instead, except from a block.
pub(crate) fn shared_bytes(object: Object<'_>) -> PyResult<Bytes> {
    /// Up to this length, a copy costs less than dropping the object elsewhere.
    const FEW: usize = 4 << 10;
    const ARGUMENT: Argument = Argument::new("rpc", "a part");
    if let Ok(block) = object.cast::<ArenaBlock>() {
        return Ok(block.get().0.clone());
    }
    let (start, length) = if let Ok(bytes) = object.cast::<PyBytes>() {
        let bytes = bytes.as_bytes();
        (bytes.as_ptr().cast_mut(), bytes.len())
    } else if let Ok(memory) = object.cast::<TensorMemory>() {
        let memory = &memory.get().0;
        (memory.start.as_ptr(), memory.bytes)
    } else if let Some(memory) = Memory::of_tensor(object, ARGUMENT)? {
        (memory.start.as_ptr(), memory.bytes)
    } else if object.is_instance_of::<PyMemoryView>() {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(ARGUMENT.refused("is not contiguous"));
        }
        // The view keeps the object exported, so this export may end.
        (buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
    } else {
        return Err(ARGUMENT.mistyped(format!(
            "must be bytes, a memoryview or a tensor, not {}",
            object.get_type()
        )));
    };
    let Some(start) = NonNull::new(start).filter(|_| length > 0) else {
        return Ok(Bytes::new());
    };
    let shared = Shared {
        start,
        length,
        _owner: object.clone().unbind(),
    };
    Ok(if length <= FEW {
        Bytes::copy_from_slice(shared.as_ref())
    } else {
        Bytes::from_owner(shared)
    })
}

/// Memory of an object as the owner of bytes.
struct Shared {
    start: NonNull<u8>,
    length: usize,
    /// Owner; pyo3 defers its release on other threads until a thread is attached.
    _owner: Py<PyAny>,
}

// SAFETY: M1 says that the memory stays for any thread.
unsafe impl Send for Shared {}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: M1, M3. M4: `rdzv.rpc` documents that the memory must stay unchanged until the
        // call has ended.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

/// View of the buffer protocol, to be filled.
type View = *mut ffi::Py_buffer;

/// Received memory with the buffer protocol.
///
/// Python may write to it unless it is in an arena of the sender or of this process.
#[pyclass(frozen, name = "Received", module = "rdzv._rdzv")]
pub(crate) struct Received {
    memory: Own<Bytes>,
    read_only: bool,
}

impl Received {
    /// M5: makes memory writable if no other owner has it, or copies it.
    ///
    /// This holds for a buffer of a pool, and for unique bytes. They were received into memory of
    /// this process, unless they are in an arena.
    pub(crate) fn new(bytes: Bytes) -> Self {
        /// Alignment that elements of every type need.
        const ALIGN: usize = 16;
        if is_leased(&bytes) || Arena::of(&bytes).is_some() {
            return Self {
                memory: Own::new(bytes),
                read_only: true,
            };
        }
        let is_aligned = bytes.as_ptr().addr().is_multiple_of(ALIGN);
        let memory = match PooledBuffer::thaw(bytes) {
            // This was the only clone of the bytes.
            Ok(buffer) if is_aligned => buffer.freeze(),
            Ok(buffer) => Bytes::copy_from_slice(buffer.as_ref()),
            Err(bytes) if is_aligned && bytes.is_unique() => bytes,
            Err(bytes) => Bytes::copy_from_slice(&bytes),
        };
        Self {
            memory: Own::new(memory),
            read_only: false,
        }
    }
}

#[pymethods]
impl Received {
    fn __len__(&self) -> usize {
        self.memory.len()
    }

    // SAFETY: Python calls this with a view to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: View, flags: c_int) -> PyResult<()> {
        let Self { memory, read_only } = slf.get();
        // SAFETY: the view keeps a reference to this object, which keeps the bytes. M5 for writing.
        unsafe { fill(&slf, view, flags, memory, *read_only) }
    }
}

/// Memory of a contiguous torch tensor, with the buffer protocol.
#[pyclass(frozen, name = "TensorMemory", module = "rdzv._rdzv")]
pub(crate) struct TensorMemory(Memory);

#[pymethods]
impl TensorMemory {
    #[new]
    fn new(tensor: Object<'_>) -> PyResult<Self> {
        const ARGUMENT: Argument = Argument::new("rpc", "tensor");
        match Memory::of_tensor(tensor, ARGUMENT)? {
            Some(memory) => Ok(Self(memory)),
            None => Err(PyTypeError::new_err("the object is not a torch tensor")),
        }
    }

    // SAFETY: Python calls this with a view to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: View, flags: c_int) -> PyResult<()> {
        // SAFETY: the view keeps a reference to this object, which keeps the tensor (M1).
        unsafe { fill(&slf, view, flags, slf.get().0.bytes(), false) }
    }
}

/// Block of an arena, with the buffer protocol.
///
/// The owner writes the block, and other processes read it.
#[pyclass(frozen, name = "ArenaBlock", module = "rdzv._rdzv")]
pub(crate) struct ArenaBlock(Own<Bytes>);

impl ArenaBlock {
    pub(crate) fn new(block: Block) -> Self {
        // A forked child does not drop the block, because the parent has leased it.
        Self(Own::new(block.freeze()))
    }
}

#[pymethods]
impl ArenaBlock {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    // SAFETY: Python calls this with a view to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: View, flags: c_int) -> PyResult<()> {
        // SAFETY: the view keeps a reference to this object. The process that made the arena, which
        // is this one, has mapped the memory for writing. Its owner promises not to write to it
        // while it is lent.
        unsafe { fill(&slf, view, flags, &slf.get().0, false) }
    }
}

/// Fills a view with memory that `owner` keeps.
///
/// # Safety
///
/// The view must be writable. The memory must exist as long as the owner, and be writable if it is
/// not read-only.
unsafe fn fill(
    owner: &Bound<'_, impl PyClass>,
    view: View,
    flags: c_int,
    bytes: &[u8],
    read_only: bool,
) -> PyResult<()> {
    let length = ffi::Py_ssize_t::try_from(bytes.len())
        .map_err(|_| PyValueError::new_err("the memory is too large for a buffer"))?;
    // SAFETY: as for this function.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            bytes.as_ptr().cast_mut().cast(),
            length,
            c_int::from(read_only),
            flags,
        )
    };
    match filled {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

/// Evaluates an expression with `$T` as the Rust type of an element type.
macro_rules! typed {
    ($element:expr, $T:ident => $body:expr) => {{
        use rdzv_collective::{Bool, ElementType, bf16, f16};
        match $element {
            ElementType::U8 => typed!(@ u8, $T, $body),
            ElementType::I8 => typed!(@ i8, $T, $body),
            ElementType::U16 => typed!(@ u16, $T, $body),
            ElementType::I16 => typed!(@ i16, $T, $body),
            ElementType::U32 => typed!(@ u32, $T, $body),
            ElementType::I32 => typed!(@ i32, $T, $body),
            ElementType::U64 => typed!(@ u64, $T, $body),
            ElementType::I64 => typed!(@ i64, $T, $body),
            ElementType::F16 => typed!(@ f16, $T, $body),
            ElementType::Bf16 => typed!(@ bf16, $T, $body),
            ElementType::F32 => typed!(@ f32, $T, $body),
            ElementType::F64 => typed!(@ f64, $T, $body),
            ElementType::Bool => typed!(@ Bool, $T, $body),
        }
    }};
    (@ $type:ty, $T:ident, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

pub(crate) use typed;
