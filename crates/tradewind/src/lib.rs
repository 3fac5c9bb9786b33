//! Tradewind's binary as a library: settings, assembly of stores and front doors, and commands.
//!
//! This is the only crate that reads files, the environment and flags, and the only one that knows
//! every type; everything below it is given plain data.

pub mod assemble;
pub mod banner;
pub mod commands;
pub mod expiry;
pub mod logs;
pub mod places;
pub mod remote;
pub mod root_key;
pub mod settings;
