//! The `tradewind` binary; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tradewind::commands::main()
}
