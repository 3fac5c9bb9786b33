//! Checks of stacks: the order of layers, and volumes against each other.

use tradewind_cache::Eviction;

use super::cached::{CachedSettings, Validate};
use super::class_policies::ClassSettings;
use super::named::{Store, StoreKind};
use super::problem::Problems;
use super::source::Sourced;
use super::value::SettingValue;
use super::volumes::{Volume, VolumeLayer};

/// Checks the layers of one stack against each other.
pub(super) fn check_stack(volume: &str, layers: &[VolumeLayer], problems: &mut Problems) {
    for set in layers.iter().filter_map(VolumeLayer::cached) {
        set.check(volume, problems);
    }
    check_order(volume, layers, problems);
    check_read_only(volume, layers, problems);
}

/// Rejects `transformed` or `deduplicated` over another layer, which would take the stored bytes for those of the object.
/// Rejects `transformed` with `encrypt` below `routed`, whose tiers would have classes to be encrypted as plain text.
fn check_order(volume: &str, layers: &[VolumeLayer], problems: &mut Problems) {
    let [upper @ .., last] = layers else { return };
    let transformed = layers.iter().find_map(VolumeLayer::transformed);
    if let (Some(set), Some(_)) = (transformed, layers.iter().find_map(VolumeLayer::deduplicated)) {
        let message = format!(
            "volume.{volume}: transformed and deduplicated cannot be in one stack, because each must be directly above the \
             store: remove one"
        );
        problems.add(&set.source, message);
        return;
    }
    if let Some(set) = upper.iter().find_map(VolumeLayer::deduplicated) {
        let message = format!(
            "volume.{volume}.deduplicated must be directly above the store: write it last, before the name of the store"
        );
        problems.add(&set.source, message);
    }
    if let Some(set) = upper.iter().find_map(VolumeLayer::transformed) {
        let message = format!(
            "volume.{volume}.transformed must be directly above the store: write it last, before the name of the store"
        );
        problems.add(&set.source, message);
    }
    let has_tiers = upper.iter().any(|layer| layer.tiers().next().is_some());
    if let Some(set) = last.transformed().filter(|set| has_tiers && !set.encrypt.set().is_empty()) {
        let message = format!(
            "volume.{volume}.transformed encrypts only the store at the bottom, but volume.{volume}.routed stores objects in \
             other stores, where they would be plain text: remove encrypt, or the layer routed"
        );
        problems.add(&set.source, message);
    }
}

/// Rejects `read-only` in a volume with another layer that changes stores on its own: tiers move objects, and write-back
/// writes its journal.
fn check_read_only(volume: &str, layers: &[VolumeLayer], problems: &mut Problems) {
    let caches = || layers.iter().filter_map(VolumeLayer::cached);
    let Some(set) = caches().find(|set| set.is_read_only()) else { return };
    let read_only = format!("volume.{volume}.cached.write is \"read-only\"");
    if layers.iter().any(|layer| layer.tiers().next().is_some()) {
        let message = format!(
            "{read_only}, but volume.{volume}.routed writes and moves objects in the stores of its tiers: remove routed, or \
             write \"through\""
        );
        problems.add(&set.write.source, message);
    }
    if caches().any(CachedSettings::writes_back) {
        let message = format!(
            "{read_only}, but another cache of the volume writes back: write \"read-only\" in both, or in neither"
        );
        problems.add(&set.write.source, message);
    }
}

/// Checks volumes against each other: a store below layers that have a state of their own, or know the tier of each
/// object, is below those of no other volume. A store that is written back is in one volume only.
pub(super) fn check(volumes: &[Volume], known: &[Store], problems: &mut Problems) {
    for (index, volume) in volumes.iter().enumerate() {
        let stores: Vec<&Sourced<String>> = volume.stores().collect();
        for (count, store) in stores.iter().enumerate() {
            if stores[..count].iter().any(|other| other.value == store.value) {
                let (name, store_name) = (&volume.name.value, &store.value);
                let message = format!("the volume {name:?} has the store {store_name:?} twice; remove one");
                problems.add(&store.source, message);
            } else if let Some(other) =
                stores[..count].iter().find(|other| is_same_service(known, &other.value, &store.value))
            {
                let message = format!(
                    "the volume {:?} has the stores {:?} and {:?}, which may be the same service: an object would be deleted as a \
                     copy of itself; if they are not, name the endpoint of each",
                    volume.name.value, other.value, store.value
                );
                problems.add(&store.source, message);
            }
        }
        check_write_back(volume, volumes, known, problems);
        check_deduplicated(volume, volumes, problems);
        let Some(layer) = volume.layers.first() else { continue };
        let shared = volumes[..index].iter().filter(|other| !other.layers.is_empty()).find_map(|other| {
            let store = stores.iter().find(|store| other.stores().any(|own| own.value == store.value))?;
            Some((other, *store))
        });
        let Some((other, store)) = shared else { continue };
        let is_cached = |volume: &Volume| volume.layers.iter().all(|layer| layer.cached().is_some());
        let (layers, one) = match is_cached(volume) && is_cached(other) {
            true => ("a cache", "one cache"),
            false => ("layers", "the layers of one volume"),
        };
        let message = format!(
            "the volumes {:?} and {:?} both have {layers} over the store {:?}; a store can be below {one} only: map the \
             buckets of both to one volume",
            other.name.value, volume.name.value, store.value
        );
        let source = layer.cached().map_or(&store.source, |set| &set.disk.source);
        problems.add(source, message);
    }
}

/// True if both stores may be the same service under two names.
fn is_same_service(known: &[Store], one: &str, other: &str) -> bool {
    let kind = |name: &str| known.iter().find(|store| store.name.value == name).map(|store| &store.kind);
    match (kind(one), kind(other)) {
        (Some(StoreKind::S3(one)), Some(StoreKind::S3(other))) => one.may_be_same_service(other),
        (Some(StoreKind::Swift(one)), Some(StoreKind::Swift(other))) => one.is_same_account(other),
        _ => false,
    }
}

/// Settings that are valid and have no effect: policies of classes in caches that ignore them.
pub(super) fn notes(volumes: &[Volume], classes: &[ClassSettings]) -> Vec<String> {
    let is_for_caches =
        |set: &&ClassSettings| set.priority.is_some() || set.occupancy.is_some() || set.pin.is_some();
    let classes: Vec<String> =
        classes.iter().filter(is_for_caches).map(|set| set.class.value.value().to_string()).collect();
    if classes.is_empty() {
        return Vec::new();
    }
    let caches = volumes.iter().flat_map(|volume| {
        let caches = volume.layers.iter().filter_map(VolumeLayer::cached);
        caches.map(|set| (&volume.name.value, &set.policy))
    });
    let ignoring = caches.filter(|(_, policy)| !policy.value.obeys_classes());
    let note = |(volume, policy): (&String, &Sourced<Eviction>)| {
        format!(
            "{}: the cache policy {:?} of the volume {volume:?} ignores priority, occupancy and pin; they are set for the \
             classes {}",
            policy.source,
            policy.value.to_text(),
            classes.join(", ")
        )
    };
    ignoring.map(note).collect()
}

/// The caches for which this machine lacks space, a sentence each. `serve` rejects them at its start.
pub(super) fn caches_without_space(volumes: &[Volume]) -> Vec<String> {
    let caches = volumes.iter().flat_map(|volume| {
        let caches = volume.layers.iter().filter_map(VolumeLayer::cached);
        caches.map(|set| (&volume.name.value, set))
    });
    let lacking = caches.filter_map(|(volume, set)| {
        // The directory may be one of another machine, and cannot be examined then.
        let lack = tradewind_cache::lack_of_space(&set.disk.value, set.size.value.0).ok()??;
        Some(format!(
            "{}: the cache of the volume {volume:?} does not fit on this machine: {lack}",
            set.size.source
        ))
    });
    lacking.collect()
}

/// Checks that no other volume without layers uses a store with chunks, whose bucket it would show.
fn check_deduplicated(volume: &Volume, volumes: &[Volume], problems: &mut Problems) {
    let Some(set) = volume.layers.iter().find_map(VolumeLayer::deduplicated) else { return };
    let store = &volume.store.value;
    let uses_it = |other: &&Volume| {
        other.name.value != volume.name.value
            && other.layers.is_empty()
            && other.stores().any(|own| own.value == *store)
    };
    for other in volumes.iter().filter(uses_it) {
        let message = format!(
            "the volume {:?} deduplicates the store {store:?}, which the volume {:?} uses too; map the buckets of both to \
             one volume",
            volume.name.value, other.name.value
        );
        problems.add(&set.source, message);
    }
}

/// Checks that a volume which writes back is the only writer of its store, as far as the settings say.
fn check_write_back(volume: &Volume, volumes: &[Volume], stores: &[Store], problems: &mut Problems) {
    let mut writing_back =
        volume.layers.iter().filter_map(VolumeLayer::cached).filter(|set| set.writes_back());
    let Some(set) = writing_back.next() else { return };
    if let Some(second) = writing_back.next() {
        let message = format!(
            "the volume {:?} writes back in two layers; write \"through\" in one of them",
            volume.name.value
        );
        problems.add(&second.write.source, message);
    }
    if matches!(set.validate.value, Validate::Always | Validate::After(_)) {
        let message = format!(
            "volume.{}.cached.validate is {:?}, but write = \"back\" means that nothing else writes the store; remove it",
            volume.name.value,
            set.validate.value.to_text()
        );
        problems.add(&set.validate.source, message);
    }
    for name in volume.stores() {
        let store = stores.iter().find(|store| store.name.value == name.value);
        if store.is_some_and(|store| !store.kind.has_conditional_writes()) && !set.sole_writer.value {
            let message = format!(
                "volume.{}.cached.write is \"back\", but the store {:?} has no conditional writes, so that a second server \
                 would not be detected; if no other server writes it, set sole_writer = true",
                volume.name.value, name.value
            );
            problems.add(&set.write.source, message);
        }
        let uses_it = |other: &&Volume| {
            other.name.value != volume.name.value && other.stores().any(|own| own.value == name.value)
        };
        for other in volumes.iter().filter(uses_it) {
            let message = format!(
                "the volume {:?} writes back to the store {:?}, which the volume {:?} uses too and would find old data \
                 in; map the buckets of both to one volume",
                volume.name.value, name.value, other.name.value
            );
            problems.add(&set.write.source, message);
        }
    }
}
