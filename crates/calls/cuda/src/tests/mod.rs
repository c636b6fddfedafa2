//! Tests with a driver that runs late, and that finds each wrong use of memory.

mod exchange;
mod fake;
mod faults;
mod histories;
