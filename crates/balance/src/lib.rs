//! Read load of a live Ceph cluster: measured, predicted, and moved off slow OSDs by primary affinity, without moving data
//! (Noel and Lama, "Taming Performance Hotspots in Cloud Storage with Dynamic Load Redistribution", CLOUD 2018).
//!
//! The decisions are in [`tradewind_model::affinity`]. This crate reads the cluster ([`Monitors`], [`admin_socket`]),
//! builds what the decisions need ([`ClusterView`]), and applies them.

pub mod activity;
pub mod admin_socket;
pub mod agent;
pub mod apply;
pub mod balancer;
mod ceph_process;
pub mod cluster_view;
pub mod collector;
mod config_key;
pub mod counters;
mod deadline_socket;
pub mod device;
pub mod dlr_signal;
pub mod error;
pub mod exclusion;
pub mod host;
pub mod journal;
pub mod last_step;
pub mod local_osds;
pub mod monitors;
pub mod osd_location;
pub mod osd_map;
mod parallel;
pub mod pg_map;
pub mod pg_order;
pub mod policy;
mod process;
mod rados;
pub mod replica_reads;
pub mod restore;
pub mod signals;
pub mod slow_host;
pub mod status;
pub mod suitability;

pub use ceph_process::CephOptions;
pub use cluster_view::ClusterView;
pub use collector::Collector;
pub use error::{Error, Result};
pub use monitors::Monitors;
pub use rados::{exit_now, has_abandoned_call};
