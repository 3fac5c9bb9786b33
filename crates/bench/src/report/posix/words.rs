//! What a result about a mounted file system means, in plain words.

use std::collections::BTreeSet;

use tradewind_core::quantity::ByteSize;

use super::super::charts::short;
use super::accesses;
use crate::posix::compare::name;
use crate::posix::policy::Writing;
use crate::posix::result::{Access, Form, Measured, Phase, Scope};

/// A paragraph for each thing that is worth saying.
pub(in crate::report) fn summary(measured: &[Measured]) -> Vec<String> {
    let mut said = Vec::new();
    for (phase, verb) in [(Phase::Write, "Writing"), (Phase::Read, "Reading")] {
        let of_phase = || accesses(measured).filter(move |access| access.phase == phase);
        let batches = || of_phase().filter(|access| access.scope == Scope::Batch);
        let rate = |access: &&Access| access.bytes_per_second.mean;
        if let Some(best) = batches().max_by(|a, b| rate(a).total_cmp(&rate(b))) {
            said.push(format!(
                "{verb} whole files reaches {} MB/s: {} access, files of {}, {}.",
                short(best.bytes_per_second.mean / 1e6),
                best.form,
                ByteSize(best.size),
                threads(best.threads)
            ));
        }
        let least = batches().map(|access| access.size).min();
        let small = batches().filter(|access| Some(access.size) == least);
        if let Some(best) = small.max_by(|a, b| a.files_per_second.mean.total_cmp(&b.files_per_second.mean)) {
            said.push(format!(
                "{verb} files of {} goes at {} a second: {} access, {}.",
                ByteSize(best.size),
                short(best.files_per_second.mean),
                best.form,
                threads(best.threads)
            ));
        }
        said.extend(pieces(of_phase().filter(|access| access.scope == Scope::Unit), verb));
    }
    said.extend(measured.iter().filter_map(policy));
    said.extend(measured.iter().filter_map(|each| match each {
        Measured::Amplification(told) if told.fit.describes() && told.fit.per_byte == 1.0 => Some(format!(
            "For each {} {}, {} access, the wire carries {} KiB on top of the files ({}).",
            if told.scope == Scope::Single { "file" } else { "round of files" },
            if told.phase == Phase::Write { "written" } else { "read" },
            told.form,
            short(told.fit.constant_kib),
            told.curve
        )),
        Measured::Postmark(postmark) if postmark.partial => Some(format!(
            "Postmark with files of {} ended early: how many transactions a second it does is not known.",
            postmark.sizes
        )),
        Measured::Postmark(postmark) => Some(format!(
            "Postmark with files of {} does {} transactions a second.",
            postmark.sizes,
            short(postmark.transactions_per_second)
        )),
        _ => None,
    }));
    let failed: u64 = measured.iter().map(Measured::failed).sum();
    if failed > 0 {
        said.push(format!(
            "{failed} times a file could not be accessed, held wrong bytes or could not be made durable: see the tables."
        ));
    }
    said
}

fn threads(count: usize) -> String {
    if count == 1 { "one thread".to_owned() } else { format!("{count} threads") }
}

/// What small pieces cost, by direct access.
fn pieces<'a>(accesses: impl Iterator<Item = &'a Access> + Clone, verb: &str) -> Option<String> {
    let direct = accesses.filter(|access| access.form == Form::Direct);
    let least = direct.clone().min_by_key(|access| access.unit)?;
    let most = direct.max_by_key(|access| access.unit).filter(|most| most.unit > least.unit)?;
    Some(format!(
        "{verb} directly in pieces of {} goes at {} MB/s, in pieces of {} at {}.",
        ByteSize(least.unit),
        short(least.bytes_per_second.mean / 1e6),
        ByteSize(most.unit),
        short(most.bytes_per_second.mean / 1e6)
    ))
}

/// What nobody should take for more than it is.
fn policy(measured: &Measured) -> Option<String> {
    let Measured::Policy(policy) = measured else { return None };
    let (what, _) = policy.write?;
    match (what, policy.form) {
        (Writing::Buffered, form) => Some(format!(
            "By {form} access a file that is closed is not in the storage yet: how fast it is written says nothing about it."
        )),
        (Writing::WriteBack, Form::Direct | Form::Sync) => Some(format!(
            "By {} access a write returns before its bytes have left, though it was asked not to.",
            policy.form
        )),
        _ => None,
    }
}

/// What was measured with success, by name.
pub(in crate::report) fn names(measured: &[Measured]) -> BTreeSet<String> {
    measured.iter().filter(|each| !each.has_nothing()).filter_map(name).collect()
}
