//! `cargo xtask bench`: rdzv and PyTorch side by side, alternating, on the same machine.

mod store;

pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    match arguments.split_first() {
        Some((what, rest)) if what == "store" => store::run(rest),
        _ => anyhow::bail!("say what to measure: `bench launch` or `bench store`"),
    }
}
