//! The `rdzv` program.
fn main() {}
