//! Room for changes that are not in the index yet.
//!
//! A change of a dirty key needs room for its growth only. Its charge follows the entry that it replaces, so that dirty data
//! stays within the limits if that entry leaves the index first.

use std::collections::HashMap;

use tradewind_core::Address;

use super::DirtyTotals;

/// Room that is reserved for a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Reservation {
    /// The charge of a change of a clean key. That of a dirty key is in [`Reservations::overwrites`].
    charge: DirtyTotals,
    /// The number of a change of a dirty key.
    number: Option<u64>,
}

/// All reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    pub totals: DirtyTotals,
    /// Changes of keys that were dirty when the change began.
    overwrites: HashMap<Address, Vec<Overwrite>>,
    next_number: u64,
}

#[derive(Debug)]
struct Overwrite {
    number: u64,
    /// The bytes of the new object.
    bytes: u64,
    charge: DirtyTotals,
}

/// The room that an object of `bytes` needs over the entry of its key, which has `current` bytes.
pub(super) fn growth(bytes: u64, current: Option<u64>) -> DirtyTotals {
    DirtyTotals { bytes: bytes.saturating_sub(current.unwrap_or(0)), entries: usize::from(current.is_none()) }
}

impl Reservations {
    /// Reserves room for an object of `bytes` at a key whose entry has `current` bytes.
    pub fn add(&mut self, address: &Address, bytes: u64, current: Option<u64>) -> Reservation {
        let charge = growth(bytes, current);
        self.totals.add(charge);
        if current.is_none() {
            return Reservation { charge, number: None };
        }
        let number = self.next_number;
        self.next_number += 1;
        self.overwrites.entry(address.clone()).or_default().push(Overwrite { number, bytes, charge });
        Reservation { charge: DirtyTotals::default(), number: Some(number) }
    }

    /// Adapts the charges of a key to its entry, which has `current` bytes now.
    pub fn follow(&mut self, address: &Address, current: Option<u64>) {
        if self.overwrites.is_empty() {
            return;
        }
        for overwrite in self.overwrites.get_mut(address).into_iter().flatten() {
            self.totals.subtract(overwrite.charge);
            overwrite.charge = growth(overwrite.bytes, current);
            self.totals.add(overwrite.charge);
        }
    }

    /// Ends a reservation.
    pub fn remove(&mut self, address: &Address, reservation: Reservation) {
        let Some(number) = reservation.number else {
            self.totals.subtract(reservation.charge);
            return;
        };
        let Some(overwrites) = self.overwrites.get_mut(address) else { return };
        if let Some(position) = overwrites.iter().position(|overwrite| overwrite.number == number) {
            self.totals.subtract(overwrites.swap_remove(position).charge);
        }
        if overwrites.is_empty() {
            self.overwrites.remove(address);
        }
    }
}
