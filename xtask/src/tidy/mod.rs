//! `cargo xtask tidy`: house rules.

pub(crate) fn run() -> anyhow::Result<()> {
    Ok(())
}
