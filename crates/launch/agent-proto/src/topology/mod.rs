//! Placement: available processors, visible devices, and their distance.
//!
//! The distance decides which processors belong to which device.
//!
//! This module does no I/O. The agent's crate reads the files of `/sys` and `/proc` and passes
//! texts and numbers.
//!
//! | file | content |
//! |---|---|
//! | `cpulist` | sets of processors, and the kernel's text form of them (`0-3,8`) |
//! | `binding` | processors that a worker is bound to with `--numa-binding` |
//! | `accelerators` | accelerators that a worker sees: `CUDA_VISIBLE_DEVICES` and similar lists |
//! | `cgroup` | files with the limits of this process's control groups |
//! | `cpu_quota` | number of processors that such a limit allows |

pub mod accelerators;
pub mod binding;
pub mod cgroup;
pub mod cpu_quota;
pub mod cpulist;

pub use accelerators::{Accelerator, Accelerators, Vendor, Visible, VisibleLists};
pub use binding::{Binding, BindingError, BindingMode, Processor, Topology, bind};
pub use cpu_quota::{CpuLimit, Quota};
pub use cpulist::{CpuList, CpuListError};
