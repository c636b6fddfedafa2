//! Placement: which processors there are to use, which devices are visible, and which processors
//! belong to which device.
//!
//! Pure: the files of `/sys` and `/proc` are read by the agent's crate, and come in here as texts
//! and numbers.
//!
//! | file | decides |
//! |---|---|
//! | `cpulist` | sets of processors, and the kernel's text form of them (`0-3,8`) |
//! | `binding` | what a worker is bound to with `--numa-binding` |
//! | `accelerators` | which accelerators a worker sees: `CUDA_VISIBLE_DEVICES` and its kin |
//! | `cgroup` | where the limits of our own control groups are written |
//! | `cpu_quota` | what such a limit leaves of the processors |

pub mod accelerators;
pub mod binding;
pub mod cgroup;
pub mod cpu_quota;
pub mod cpulist;

pub use accelerators::{Accelerators, Device, Vendor, Visible, VisibleLists};
pub use binding::{Binding, BindingError, BindingMode, Processor, Topology, bind};
pub use cpu_quota::{CpuLimit, Quota};
pub use cpulist::{CpuList, CpuListError};
