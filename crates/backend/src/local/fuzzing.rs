//! Entry point of the record format's fuzz target in `fuzz/`: derives a test case from any bytes, and panics if the
//! format violates its guarantees. The property tests below call the same function, so that every run of the tests
//! covers a sample.
//!
//! Enabled by the feature `fuzzing`, which only `fuzz/` sets. Not a public interface.

#![allow(clippy::unwrap_used, reason = "a fuzz target fails by panicking")]

use tradewind_core::checksum::crc64nvme;

use super::frame::{
    ALIGNMENT, BLOCK_BYTES, HEADER_BYTES, MAX_FIELDS_BYTES, MAX_PAYLOAD_BYTES, NotARecord, RecordHeader,
    RecordKind,
};
use super::position::Position;
use super::record::{Record, decode_bucket_and_key};

/// The first byte selects the case: a stored frame, the parts of a frame, or fields. Salt and position, 16 bytes, and
/// the case's data follow.
pub fn record(data: &[u8]) {
    let Some((head, rest)) = data.split_at_checked(17) else { return };
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    let (salt, position) = (number(1), Position::unpack(number(9)));
    match head[0] % 3 {
        0 => frame(salt, position, rest),
        1 => parts(salt, position, rest),
        _ => RecordKind::ALL.into_iter().for_each(|kind| fields(kind, rest)),
    }
}

/// A frame from arbitrary bytes: unchanged, and with a corrected checksum.
fn frame(salt: u64, position: Position, bytes: &[u8]) {
    let checksum = |head: &[u8]| head_checksum(salt, position, head);
    match RecordHeader::decode(salt, position, bytes) {
        Ok((header, _)) => assert_eq!(checksum(&bytes[..header.head_bytes()]), stored_checksum(bytes)),
        Err(NotARecord::Short(needed)) => assert!(needed > bytes.len()),
        Err(_) => {}
    }
    let Ok(header) = RecordHeader::peek(bytes) else { return };
    assert!(header.fields_bytes as usize <= MAX_FIELDS_BYTES);
    assert!(header.payload_bytes as usize <= MAX_PAYLOAD_BYTES);
    let head_bytes = HEADER_BYTES
        + header.fields_bytes as usize
        + 8 * (header.payload_bytes as usize).div_ceil(BLOCK_BYTES);
    assert_eq!(header.head_bytes(), head_bytes);
    let padding = header.record_bytes() - head_bytes - header.payload_bytes as usize;
    assert!(header.record_bytes().is_multiple_of(ALIGNMENT) && padding < ALIGNMENT);
    let Some(head) = bytes.get(..head_bytes) else { return };
    let mut head = head.to_vec();
    let right = checksum(&head);
    head[40..48].copy_from_slice(&right.to_le_bytes());
    let (found, parts) = RecordHeader::decode(salt, position, &head).expect("the checksum is right");
    assert_eq!(found, header);
    assert_eq!([parts.fields, parts.block_table].concat(), head[HEADER_BYTES..]);
    fields(header.kind, parts.fields);
    // A writer leaves zeros where the format defines nothing yet.
    let mut plain = head.clone();
    plain[7] = 0;
    plain[32..40].fill(0);
    let right = checksum(&plain);
    plain[40..48].copy_from_slice(&right.to_le_bytes());
    let entry = |at: usize| u64::from_le_bytes(parts.block_table[at..at + 8].try_into().unwrap());
    let block_crcs: Vec<u64> = (0..parts.block_table.len()).step_by(8).map(entry).collect();
    assert_eq!(header.encode_head(salt, position, parts.fields, &block_crcs), plain);
}

/// A frame made of any parts is read back, but not after any bit flip.
fn parts(salt: u64, position: Position, bytes: &[u8]) {
    let Some((numbers, rest)) = bytes.split_at_checked(24) else { return };
    let number = |at: usize| u64::from_le_bytes(numbers[at..at + 8].try_into().unwrap());
    let kinds = RecordKind::ALL;
    let payload_bytes = u32::from_le_bytes(numbers[16..20].try_into().unwrap());
    let payload_bytes = payload_bytes % (u32::try_from(MAX_PAYLOAD_BYTES).unwrap() + 1);
    let header = RecordHeader {
        kind: kinds[usize::from(numbers[20]) % kinds.len()],
        is_relocated: numbers[21] & 1 == 1,
        fields_bytes: u32::try_from(rest.len()).unwrap(),
        payload_bytes,
        seq: number(0),
        durable_end: Position::unpack(number(8)),
    };
    let blocks = u64::from(payload_bytes.div_ceil(u32::try_from(BLOCK_BYTES).unwrap()));
    let block_crcs: Vec<u64> = (0..blocks).map(|index| number(0).rotate_left(7) ^ index).collect();
    let mut head = header.encode_head(salt, position, rest, &block_crcs);
    let (found, parts) = RecordHeader::decode(salt, position, &head).expect("it was just encoded");
    assert_eq!((found, parts.fields), (header, rest));
    assert!(block_crcs.iter().enumerate().all(|(index, crc)| parts.block_crc(index) == *crc));
    let elsewhere = Position::new(position.segment ^ 1, position.offset);
    assert_eq!(RecordHeader::decode(salt, elsewhere, &head).err(), Some(NotARecord::BadChecksum));
    let bit = usize::from(u16::from_le_bytes([numbers[22], numbers[23]])) % (head.len() * 8);
    head[bit / 8] ^= 1 << (bit % 8);
    assert!(RecordHeader::decode(salt, position, &head).is_err(), "bit {bit} was flipped");
}

/// Decoded fields stay equal when encoded and decoded again.
fn fields(kind: RecordKind, bytes: &[u8]) {
    let name = decode_bucket_and_key(bytes);
    let Ok(record) = Record::decode(kind, bytes) else { return };
    let encoded = record.encode();
    // Missing fields read as defaults, some of which are written.
    assert!(encoded.len() <= bytes.len() + 64, "{} bytes became {}", bytes.len(), encoded.len());
    assert_eq!(record.kind(), kind);
    let again = Record::decode(kind, &encoded).expect("it was just encoded");
    assert_eq!(again, record);
    assert_eq!(again.encode(), encoded);
    let (bucket, key) = match &record {
        Record::Object(object) => (object.bucket, &object.key),
        Record::UploadCreated(upload) => (upload.bucket, &upload.key),
        Record::Tombstone(name) => (name.bucket, &name.key),
        _ => return,
    };
    assert_eq!(decode_bucket_and_key(&encoded).unwrap(), (bucket, key.clone()));
    assert!(name.is_ok() || !matches!(record, Record::Tombstone(_)));
}

fn stored_checksum(head: &[u8]) -> u64 {
    u64::from_le_bytes(head[40..48].try_into().unwrap())
}

/// The checksum as specified by `docs/format.md`.
fn head_checksum(salt: u64, position: Position, head: &[u8]) -> u64 {
    let salt_and_position = crc64nvme(&[salt.to_le_bytes(), position.pack().to_le_bytes()].concat());
    let (header, rest) = (crc64nvme(&head[..40]), crc64nvme(&head[HEADER_BYTES..]));
    let numbers = [salt_and_position.rotate_left(17) ^ header, header, rest];
    crc64nvme(&numbers.map(u64::to_le_bytes).concat())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    /// Fields with mostly valid tags and lengths.
    fn likely_fields() -> impl Strategy<Value = Vec<u8>> {
        let field = (0_u8..46, prop::collection::vec(0_u8..8, 0..20));
        let one =
            field.prop_map(|(tag, value)| [&[tag, u8::try_from(value.len()).unwrap()], &value[..]].concat());
        prop::collection::vec(one, 0..8).prop_map(|fields| fields.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn any_case(start in any::<[u8; 17]>(), rest in prop::collection::vec(any::<u8>(), 0..120)) {
            super::record(&[&start[..], &rest].concat());
        }

        #[test]
        fn any_fields(fields in likely_fields()) {
            super::record(&[&[2; 17][..], &fields].concat());
        }

        #[test]
        fn any_frame(salt_and_position in any::<[u8; 16]>(), numbers in any::<[u8; 24]>(), fields in likely_fields(), kind in 1_u8..10) {
            let mut header = [&b"TWr1"[..], &[kind, numbers[0] & 1, 1, 0]].concat();
            header.extend_from_slice(&u32::try_from(fields.len()).unwrap().to_le_bytes());
            header.extend_from_slice(&[numbers[1], 0, 0, 0]);
            header.extend_from_slice(&[&numbers[..], &[0; 8]].concat());
            super::record(&[&[0][..], &salt_and_position, &header, &fields, &[7; 8]].concat());
        }
    }
}
