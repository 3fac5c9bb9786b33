//! Read load of a live Ceph cluster: measured, predicted, and moved off slow OSDs by primary affinity, without moving data
//! (Noel and Lama, "Taming Performance Hotspots in Cloud Storage with Dynamic Load Redistribution", CLOUD 2018).
//!
//! The decisions are in [`tradewind_model::affinity`]. This crate reads the cluster ([`CephProcess`], [`admin_socket`]),
//! builds what the decisions need ([`ClusterView`]), and applies them.

pub mod admin_socket;
pub mod balancer;
pub mod ceph_process;
pub mod cluster_view;
pub mod collector;
pub mod counters;
pub mod device;
pub mod error;
pub mod journal;
pub mod osd_map;
pub mod pg_map;
pub mod pg_order;
pub mod policy;
pub mod suitability;

pub use ceph_process::{CephOptions, CephProcess};
pub use cluster_view::ClusterView;
pub use collector::Collector;
pub use error::{Error, Result};
