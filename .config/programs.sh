#!/bin/sh
# Builds the programs that tests start, once before the run.
set -eu
# Variables that describe a package would have dependencies built again whose build scripts read them.
for name in $(env | sed -n 's/^\(CARGO_PKG_[A-Z_]*\|CARGO_MANIFEST_[A-Z_]*\)=.*/\1/p'); do unset "$name"; done
cargo build --workspace --locked --lib --bins --examples
echo RDZV_TEST_PROGRAMS_BUILT=1 >>"$NEXTEST_ENV"
