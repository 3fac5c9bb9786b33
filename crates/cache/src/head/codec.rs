//! The form of a head on the SSD. The extent that holds it has a checksum; the codec nevertheless rejects what is not
//! legal, because values of the core types must be.

use std::time::Duration;

use bytes::Bytes;
use tradewind_core::checksum::{Algorithm, Checksum, ChecksumScope};
use tradewind_core::class::{Class, ClassRange, Classes, Retention};
use tradewind_core::metadata::{Metadata, SystemHeaders, Tags, UserMetadata};
use tradewind_core::{Address, ETag, Generation, ObjectInfo, Timestamp, VersionId};

use super::{ContentId, Head, Stamp};
use crate::extent::MAX_HEAD_BYTES;
use crate::fields::{FieldReader, FieldWriter};

/// The version of the format.
const VERSION: u8 = 2;
/// The version without retentions.
const VERSION_WITHOUT_RETENTION: u8 = 1;

/// The head and, if it has them, its data, in their form on the SSD.
pub(crate) fn encode_head(head: &Head) -> Vec<u8> {
    let mut out = FieldWriter::default();
    let stamp = head.stamp();
    out.u8(VERSION);
    out.u64(head.content.0);
    out.u64(stamp.session);
    out.u64(stamp.sequence);
    out.u64(u64::try_from(stamp.time.as_nanos()).unwrap_or(u64::MAX));
    out.text(head.address.bucket.as_str());
    out.text(head.address.key.as_str());
    write_info(&mut out, &head.info);
    let retention = head.info.metadata.classes.retention;
    out.u64(retention.map_or(0, Retention::end_seconds));
    out.u32(retention.map_or(0, Retention::period_seconds));
    out.u8(u8::from(head.data.is_some()));
    if let Some(data) = &head.data {
        out.u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
        out.bytes(data);
    }
    out.finish()
}

/// Returns true if a head without data, and all bytes of its object, fit into one extent.
pub(crate) fn is_one_extent(head: &Head) -> bool {
    encoded_bytes_with_data(head) <= MAX_HEAD_BYTES
}

/// Bytes of the form of a head without data, once it has all bytes of its object.
pub(crate) fn encoded_bytes_with_data(head: &Head) -> usize {
    let length_bytes = (u32::BITS / 8) as usize;
    let size = usize::try_from(head.info.size).unwrap_or(usize::MAX);
    (encode_head(head).len() + length_bytes).saturating_add(size)
}

/// The head in `bytes`; `None` if they are not one.
pub(crate) fn decode_head(bytes: &[u8]) -> Option<Head> {
    let mut fields = FieldReader::new(bytes);
    let version = fields.u8()?;
    if ![VERSION, VERSION_WITHOUT_RETENTION].contains(&version) {
        return None;
    }
    let content = ContentId(fields.u64()?);
    let stamp =
        Stamp { session: fields.u64()?, sequence: fields.u64()?, time: Duration::from_nanos(fields.u64()?) };
    let address = Address::parse(fields.text()?, fields.text()?).ok()?;
    let mut info = read_info(&mut fields)?;
    if version != VERSION_WITHOUT_RETENTION {
        info.metadata.classes.retention = read_retention(&mut fields)?;
    }
    let data = match fields.flag()? {
        true => {
            let length = usize::try_from(fields.u32()?).ok()?;
            let data = fields.bytes(length)?;
            if data.len() as u64 != info.size {
                return None;
            }
            Some(Bytes::copy_from_slice(data))
        }
        false => None,
    };
    (fields.remaining() == 0).then(|| {
        let head = Head::new(address, info, content, data, stamp);
        // It was stored with its data.
        head.set_has_extents();
        head
    })
}

fn write_info(out: &mut FieldWriter, info: &ObjectInfo) {
    out.u64(info.size);
    out.text(info.etag.as_str());
    out.u64(info.modified.millis().cast_unsigned());
    out.u64(info.generation.0);
    write_metadata(out, &info.metadata);
    out.u16(count(info.checksums.len()));
    for checksum in &info.checksums {
        out.u8(algorithm_number(checksum.algorithm()));
        out.bytes(checksum.bytes());
    }
    out.u8(u8::from(info.scope == ChecksumScope::Composite));
    out.u8(u8::from(info.parts.is_some()));
    out.u32(info.parts.unwrap_or(0));
    out.u8(u8::from(info.version.is_some()));
    match &info.version {
        None => {}
        Some(VersionId::Null) => out.optional_text(None),
        Some(VersionId::Id(id)) => out.optional_text(Some(id)),
    }
}

fn read_info(fields: &mut FieldReader<'_>) -> Option<ObjectInfo> {
    let size = fields.u64()?;
    let etag = ETag::from_tag(fields.text()?);
    let modified = Timestamp::from_millis(fields.u64()?.cast_signed());
    let generation = Generation(fields.u64()?);
    let metadata = read_metadata(fields)?;
    let mut checksums = Vec::new();
    for _ in 0..fields.u16()? {
        let number = usize::from(fields.u8()?);
        let algorithm = *Algorithm::ALL.get(number)?;
        checksums.push(Checksum::new(algorithm, fields.bytes(algorithm.size())?).ok()?);
    }
    let scope = if fields.flag()? { ChecksumScope::Composite } else { ChecksumScope::FullObject };
    let (has_parts, parts) = (fields.flag()?, fields.u32()?);
    let version = match fields.flag()? {
        false => None,
        true => match fields.optional_text()? {
            None => Some(VersionId::Null),
            Some(id) => Some(VersionId::Id(id.into())),
        },
    };
    let parts = has_parts.then_some(parts);
    Some(ObjectInfo {
        size,
        etag,
        modified,
        generation,
        metadata,
        checksums,
        scope,
        parts,
        version,
        stored: None,
    })
}

fn write_metadata(out: &mut FieldWriter, metadata: &Metadata) {
    for value in metadata.headers.values() {
        out.optional_text(value.as_deref());
    }
    write_pairs(out, &metadata.user);
    write_pairs(out, metadata.tags.pairs());
    let classes = &metadata.classes;
    out.u8(classes.object.map_or(u8::MAX, Class::value));
    out.u32(u32::try_from(classes.ranges.len()).unwrap_or(u32::MAX));
    for range in &classes.ranges {
        out.u32(range.first_sector);
        out.u32(range.sectors);
        out.u8(range.class.value());
    }
}

fn read_metadata(fields: &mut FieldReader<'_>) -> Option<Metadata> {
    let mut headers = SystemHeaders::default();
    for value in headers.values_mut() {
        *value = fields.optional_text()?.map(str::to_owned);
    }
    let user = read_pairs(fields)?;
    let tags = Tags::new(read_pairs(fields)?).ok()?;
    let object = match fields.u8()? {
        u8::MAX => None,
        number => Some(Class::new(number).ok()?),
    };
    let mut ranges = Vec::new();
    for _ in 0..fields.u32()? {
        let (first_sector, sectors) = (fields.u32()?, fields.u32()?);
        ranges.push(ClassRange { first_sector, sectors, class: Class::new(fields.u8()?).ok()? });
    }
    Some(Metadata { headers, user, tags, classes: Classes { object, ranges, retention: None } })
}

/// The inner `None` is no retention: its period is 0.
fn read_retention(fields: &mut FieldReader<'_>) -> Option<Option<Retention>> {
    match (fields.u64()?, fields.u32()?) {
        (0, 0) => Some(None),
        (end, period) => Retention::new(end, period).ok().map(Some),
    }
}

fn write_pairs(out: &mut FieldWriter, pairs: &[(String, String)]) {
    out.u16(count(pairs.len()));
    for (name, value) in pairs {
        out.text(name);
        out.text(value);
    }
}

fn read_pairs(fields: &mut FieldReader<'_>) -> Option<UserMetadata> {
    let mut pairs = Vec::new();
    for _ in 0..fields.u16()? {
        pairs.push((fields.text()?.to_owned(), fields.text()?.to_owned()));
    }
    Some(pairs)
}

/// A count whose excess makes the encoded head undecodable, and thus a miss.
fn count(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// The number of an algorithm in [`Algorithm::ALL`].
fn algorithm_number(algorithm: Algorithm) -> u8 {
    let position = Algorithm::ALL.iter().position(|known| *known == algorithm);
    position.and_then(|position| u8::try_from(position).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn optional(text: &'static str) -> impl Strategy<Value = Option<String>> {
        prop::option::of(text)
    }

    prop_compose! {
        fn metadata()(
            headers in prop::array::uniform8(optional(".{1,12}")),
            user in prop::collection::vec(("[a-z]{1,8}", ".{0,12}"), 0..4),
            tags in prop::collection::btree_map("[a-z]{1,8}", "[a-z0-9 ]{0,8}", 0..4),
            object in prop::option::of(0_u8..32),
            ranges in prop::collection::vec((any::<u32>(), any::<u32>(), 0_u8..32), 0..4),
            retention in prop::option::of((0..Retention::MAX_END_SECONDS, 1..Retention::MAX_PERIOD_SECONDS)),
        ) -> Metadata {
            let mut system = SystemHeaders::default();
            for (to, from) in system.values_mut().into_iter().zip(headers) {
                *to = from;
            }
            let range = |(first_sector, sectors, class)| {
                ClassRange { first_sector, sectors, class: Class::new(class).unwrap() }
            };
            Metadata {
                headers: system,
                user,
                tags: Tags::new(tags.into_iter().collect()).unwrap(),
                classes: Classes {
                    object: object.map(|class| Class::new(class).unwrap()),
                    ranges: ranges.into_iter().map(range).collect(),
                    retention: retention.and_then(|(end, period)| Retention::new(end, period).ok()),
                },
            }
        }
    }

    prop_compose! {
        fn head()(
            metadata in metadata(),
            key in ".{1,40}",
            etag in "[a-f0-9-]{0,40}",
            numbers in prop::array::uniform5(any::<u64>()),
            modified in any::<i64>(),
            data in prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
            algorithms in prop::sample::subsequence(Algorithm::ALL.to_vec(), 0..10),
            is_composite in any::<bool>(),
            parts in prop::option::of(any::<u32>()),
            version in prop::option::of(prop::option::of("[a-z]{1,20}")),
        ) -> Head {
            let [size, generation, content, session, nanos] = numbers;
            let info = ObjectInfo {
                size: data.as_ref().map_or(size, |data| data.len() as u64),
                etag: ETag::from_tag(&etag),
                modified: Timestamp::from_millis(modified),
                generation: Generation(generation),
                metadata,
                checksums: algorithms.into_iter().map(|a| Checksum::compute(a, b"x")).collect(),
                scope: if is_composite { ChecksumScope::Composite } else { ChecksumScope::FullObject },
                parts,
                version: version.map(|id| id.map_or(VersionId::Null, |id| VersionId::Id(id.into()))),
                stored: None,
            };
            let stamp = Stamp { session, sequence: 3, time: Duration::from_nanos(nanos) };
            Head::new(Address::parse("bucket", &key).unwrap(), info, ContentId(content), data.map(Bytes::from), stamp)
        }
    }

    proptest! {
        #[test]
        fn heads_round_trip(head in head()) {
            let decoded = decode_head(&encode_head(&head)).unwrap();
            prop_assert_eq!(&decoded.address, &head.address);
            prop_assert_eq!(&decoded.info, &head.info);
            prop_assert_eq!(decoded.content, head.content);
            prop_assert_eq!(decoded.stamp(), head.stamp());
            prop_assert_eq!(&decoded.data, &head.data);
        }

        #[test]
        fn heads_of_version_one_have_no_retention(head in head()) {
            let mut bytes = encode_head(&head);
            let data_bytes = head.data.as_ref().map_or(0, |data| 4 + data.len());
            let end = bytes.len() - 1 - data_bytes;
            bytes.drain(end - 12..end);
            bytes[0] = VERSION_WITHOUT_RETENTION;
            let mut expected = head.info.clone();
            expected.metadata.classes.retention = None;
            prop_assert_eq!(&decode_head(&bytes).unwrap().info, &expected);
        }

        #[test]
        fn damaged_heads_never_panic(head in head(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut bytes = encode_head(&head);
            prop_assert!(decode_head(&bytes[..cut.index(bytes.len())]).is_none());
            let at = flip.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let _ = decode_head(&bytes);
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode_head(&bytes);
        }
    }
}
