//! `compress` and `encrypt` in `[class.N]`, checked against the layers `transformed` of the volumes.

use super::class_policies::ClassSettings;
use super::problem::Problems;
use super::volumes::{Volume, VolumeLayer};

/// Rejects a key without any layer that obeys it, and encryption where a layer has no key or is below tiers.
pub(super) fn check(classes: &[ClassSettings], volumes: &[Volume], problems: &mut Problems) {
    let is_obeyed =
        volumes.iter().any(|volume| volume.layers.iter().any(|layer| layer.transformed().is_some()));
    for set in classes {
        let class = set.class.value.value();
        for (key, set) in [("compress", &set.compress), ("encrypt", &set.encrypt)] {
            if let Some(set) = set.as_ref().filter(|_| !is_obeyed) {
                let message = format!(
                    "class.{class}.{key} has no effect: no volume has the layer transformed; add it to a stack, or remove \
                     {key}"
                );
                problems.add(&set.source, message);
            }
        }
        if set.encrypt.as_ref().is_some_and(|encrypt| encrypt.value) {
            volumes.iter().for_each(|volume| check_encryption(set, volume, problems));
        }
    }
}

/// Checks that a volume can encrypt a class. A layer whose own setting encrypts is checked with the layer.
fn check_encryption(set: &ClassSettings, volume: &Volume, problems: &mut Problems) {
    let Some(encrypt) = &set.encrypt else { return };
    let Some(layer) = volume.layers.iter().find_map(VolumeLayer::transformed) else { return };
    if !layer.encrypt.set().is_empty() {
        return;
    }
    let (class, volume_name) = (set.class.value.value(), &volume.name.value);
    if layer.key.is_none() {
        let example = "key = \"main\", keys = { main = \"/etc/tradewind/main.key\" }";
        let message = format!(
            "class.{class}.encrypt: volume.{volume_name}.transformed has no key to encrypt with; add for example {example}"
        );
        problems.add(&encrypt.source, message);
    }
    if volume.layers.iter().any(|layer| layer.tiers().next().is_some()) {
        let message = format!(
            "class.{class}.encrypt: volume.{volume_name}.transformed encrypts only the store at the bottom, but \
             volume.{volume_name}.routed stores objects in other stores, where they would be plain text: remove encrypt, or \
             the layer routed"
        );
        problems.add(&encrypt.source, message);
    }
}
