//! Tradewind's binary as a library: settings, assembly of stores and servers, commands, and access to S3 and Swift
//! services.
//!
//! This is the only crate that reads settings files, environment and flags, and the only one that depends on all
//! others; they receive plain data.

pub mod admin_client;
pub mod assemble;
pub mod aws;
pub mod banner;
pub mod bucket_report;
pub mod cache_metrics;
pub mod chunk_collector;
pub mod chunk_preparation;
pub mod commands;
pub mod deduplication_metrics;
pub mod expiry;
pub mod locations;
pub mod logs;
pub mod memory_limit;
pub mod openstack;
pub mod profiles;
pub mod proxies;
pub mod root_key;
pub mod s3_access;
pub mod served_plan;
pub mod settings;
pub mod slice_metrics;
pub mod store_metrics;
pub mod stores;
pub mod tier_mover;
pub mod write_back_metrics;
