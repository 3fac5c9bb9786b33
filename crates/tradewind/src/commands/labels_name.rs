//! The flag `--labels` of the class workload and of its simulation.

use clap::ValueEnum;
use tradewind_model::workload::Labels;

/// The labels that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum LabelsName {
    /// The class of the object's type
    On,
    /// None
    Off,
    /// The class of a random object
    Shuffled,
    /// The reverse order of classes
    Inverted,
    /// The highest class for every object
    Flooding,
}

impl LabelsName {
    /// The labels of this name.
    pub fn labels(self) -> Labels {
        match self {
            Self::On => Labels::On,
            Self::Off => Labels::Off,
            Self::Shuffled => Labels::Shuffled,
            Self::Inverted => Labels::Inverted,
            Self::Flooding => Labels::Flooding,
        }
    }
}
