//! The `tradewind` binary; everything is in the library.

use std::process::ExitCode;

/// See `docs/decisions/0005-allocator.md`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tradewind::commands::main()
}
