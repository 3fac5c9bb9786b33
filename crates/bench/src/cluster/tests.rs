//! Agents and coordinators over loopback and in memory: what they do together, what becomes of the others where one dies,
//! and what somebody without the key, or with bad manners, can do.

mod strangers;
mod together;
