//! `cargo xtask bench store`: the TCP store server against PyTorch's.

pub(crate) fn run(_arguments: &[String]) -> anyhow::Result<()> {
    anyhow::bail!("`bench store` cannot measure anything yet")
}
