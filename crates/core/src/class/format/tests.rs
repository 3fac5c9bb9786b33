use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn class(value: u8) -> Class {
    Class::new(value).unwrap()
}

fn range(first_sector: u32, sectors: u32, class_value: u8) -> ClassRange {
    ClassRange { first_sector, sectors, class: class(class_value) }
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

fn why(result: Result<impl std::fmt::Debug>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.reason(), Reason::InvalidArgument);
    assert!(error.client_message().is_some(), "the client gets the message");
    error.to_string()
}

/// The test vectors of `docs/classes.md`.
#[test]
fn test_vectors_are_encoded_and_decoded() {
    let object = bytes("D55C 00 01 000000000000000000000000 19");
    let ranges = bytes("D55C 01 02 00000002 0000000000000000 00000000 00000040 0019 00000400 00000020 001A");
    let blocks = bytes("D55C 02 01 00000003 00000008 00000000 19 00 1A");
    let cases = [
        (Classification::Object(class(25)), ClassWidth::One, object, 1),
        (
            Classification::Ranges(vec![range(0, 64, 25), range(1024, 32, 26)]),
            ClassWidth::Two,
            ranges,
            1056 * 512,
        ),
        (
            Classification::Blocks { block_sectors: 8, classes: vec![class(25), class(0), class(26)] },
            ClassWidth::One,
            blocks,
            10_000,
        ),
    ];
    let mut decoded = Vec::new();
    for (classification, width, expected, size) in cases {
        assert_eq!(classification.encode(width).unwrap(), expected);
        let section = decode(&expected).unwrap();
        assert_eq!(section.head.section_bytes(), expected.len() as u64);
        decoded.push(section.classes_for(size).unwrap());
    }
    assert_eq!(decoded[0], Classes { object: Some(class(25)), ..Classes::default() });
    assert_eq!(decoded[1].format_ranges().unwrap(), "0-64-25,1024-32-26");
    // 10,000 bytes are 20 sectors: two blocks of 8, and one of 4.
    assert_eq!(decoded[2].format_ranges().unwrap(), "0-8-25,16-4-26");
}

#[test]
fn malformed_sections_are_rejected() {
    let zeros = "000000000000000000000000";
    for (hexadecimal, reason) in [
        (format!("5CD5 00 01 {zeros} 19"), "begin with the bytes D55C"),
        (format!("D55C 03 01 {zeros} 19"), "VER_ID is 3"),
        (format!("D55C 00 00 {zeros} 19"), "CLS_BYTES is 0"),
        (format!("D55C 00 03 {zeros} 000019"), "CLS_BYTES is 3"),
        (format!("D55C 00 08 {zeros} 0000000000000019"), "CLS_BYTES is 8"),
        (format!("D55C 00 01 {zeros} 20"), "entry 0 has class 32"),
        (format!("D55C 00 04 {zeros} 00000119"), "entry 0 has class 281"),
        ("D55C 00 01 000000000000000000000001 19".to_owned(), "RESERVED"),
        ("D55C 01 01 00000000 0100000000000000".to_owned(), "RESERVED"),
        ("D55C 02 01 00000001 00000008 00000001 19".to_owned(), "RESERVED"),
        ("D55C 02 01 00000001 00000000 00000000 19".to_owned(), "BLK_SECTORS is 0"),
        ("D55C 02 01 00000002 00000008 00000000 19".to_owned(), "ends before the last entry"),
        ("D55C 02 01 00000001 00000008 00000000 1919".to_owned(), "bytes follow"),
        ("D55C 02 01 00000002 80000000 00000000 1919".to_owned(), ""),
        ("D55C 02 01 00000003 80000000 00000000 191919".to_owned(), "2^32"),
        (
            "D55C 01 01 00000002 0000000000000000 00000008 00000008 01 00000000 00000008 01".to_owned(),
            "ascending",
        ),
        (
            "D55C 01 01 00000002 0000000000000000 00000000 00000008 01 00000007 00000008 01".to_owned(),
            "overlap",
        ),
        ("D55C 01 01 00000001 0000000000000000 00000000 00000000 01".to_owned(), "at least one sector"),
        ("D55C 01 01 00000001 0000000000000000 FFFFFFFF 00000001 01".to_owned(), "2^32"),
        ("D55C 00 01".to_owned(), "ends before"),
        (String::new(), "ends before"),
    ] {
        let result = decode(&bytes(&hexadecimal));
        if reason.is_empty() {
            assert!(result.is_ok(), "{hexadecimal}: {result:?}");
        } else {
            assert!(why(result).contains(reason), "{hexadecimal}: {reason}");
        }
    }
}

#[test]
fn entries_after_the_end_of_the_object_are_rejected() {
    let blocks = |n| Classification::Blocks { block_sectors: 8, classes: vec![class(1); n] };
    let decoded = |classification: Classification, size| {
        decode(&classification.encode(ClassWidth::One).unwrap()).unwrap().classes_for(size)
    };
    assert_eq!(decoded(blocks(2), 4097).unwrap().format_ranges().unwrap(), "0-9-1", "a partial block");
    assert_eq!(decoded(blocks(1), 8192).unwrap().format_ranges().unwrap(), "0-8-1", "fewer blocks");
    assert!(why(decoded(blocks(2), 4096)).contains("the object has 1"));
    assert!(why(decoded(blocks(1), 0)).contains("the object has 0"));
    assert!(decoded(blocks(0), 0).unwrap().is_empty());
    let ranges = || Classification::Ranges(vec![range(0, 2, 1)]);
    assert!(decoded(ranges(), 513).is_ok(), "a partial sector");
    assert!(why(decoded(ranges(), 512)).contains("not within the object"));
}

#[test]
fn the_limit_counts_ranges_and_not_entries() {
    let blocks = |classes: Vec<Class>| {
        let encoded = Classification::Blocks { block_sectors: 8, classes }.encode(ClassWidth::Four);
        decode(&encoded.unwrap())
    };
    let long = (0..100_000).map(|n| class(u8::from(n >= 50_000) + 1)).collect();
    let classes = blocks(long).unwrap().classes_for(100_000 * 4096).unwrap();
    assert_eq!(classes.format_ranges().unwrap(), "0-400000-1,400000-400000-2");
    let many: Vec<Class> = (0..1025).map(|n| class(1 + u8::from(n % 2 == 0))).collect();
    assert!(blocks(many[..1024].to_vec()).is_ok());
    assert!(why(blocks(many)).contains("at most 1024 ranges"));
}

#[test]
fn an_announced_number_of_entries_allocates_nothing() {
    let mut decoder = Decoder::default();
    let head = bytes("D55C 01 04 FFFFFFFF 0000000000000000");
    assert_eq!(decoder.feed(&mut &head[..]).unwrap(), None);
    assert_eq!(decoder.classes.ranges.capacity(), 0);
}

#[test]
fn bytes_after_the_section_stay_in_the_input() {
    let mut bytes = Classification::Object(class(7)).encode(ClassWidth::Two).unwrap();
    bytes.extend_from_slice(b"data");
    let mut input = &bytes[..];
    let section = Decoder::default().feed(&mut input).unwrap().unwrap();
    assert_eq!((section.head.section_bytes(), input), (18, &b"data"[..]));
}

fn classifications() -> impl Strategy<Value = Classification> {
    let class = || (0..=Class::MAX).prop_map(class);
    let blocks = (1..100_u32, vec(class(), 0..300))
        .prop_map(|(block_sectors, classes)| Classification::Blocks { block_sectors, classes });
    let ranges = vec((0..3_u32, 1..50_u32, class()), 0..200).prop_map(|items| {
        let mut next = 0;
        let range = |(gap, sectors, class)| {
            let first_sector = next + gap;
            next = first_sector + sectors;
            ClassRange { first_sector, sectors, class }
        };
        Classification::Ranges(items.into_iter().map(range).collect())
    });
    prop_oneof![class().prop_map(Classification::Object), ranges, blocks]
}

/// The class of each sector, `None` without one.
fn by_sector(ranges: impl IntoIterator<Item = ClassRange>) -> Vec<Option<Class>> {
    let mut sectors = Vec::new();
    for range in ranges {
        sectors.resize(range.first_sector as usize, None);
        sectors.resize(range.end() as usize, Some(range.class));
    }
    sectors
}

proptest! {
    #[test]
    fn decoding_restores_what_was_encoded(
        classification in classifications(), width in prop::sample::select(&ClassWidth::ALL), cut in 1..40_usize,
    ) {
        let encoded = classification.encode(width).unwrap();
        let mut decoder = Decoder::default();
        let mut section = None;
        for mut piece in encoded.chunks(cut) {
            prop_assert!(section.is_none(), "bytes after the end");
            section = decoder.feed(&mut piece).unwrap();
            prop_assert!(piece.is_empty());
        }
        let section = section.unwrap();
        prop_assert_eq!(section.head.width, width);
        let classes = section.classes_for(1 << 40).unwrap();
        match classification {
            Classification::Object(class) => prop_assert_eq!(classes.object, Some(class)),
            Classification::Ranges(ranges) => prop_assert_eq!(by_sector(classes.ranges), by_sector(ranges)),
            Classification::Blocks { block_sectors, classes: blocks } => {
                let block = |(n, class): (usize, Class)| ClassRange {
                    first_sector: u32::try_from(n).unwrap() * block_sectors, sectors: block_sectors, class,
                };
                let labelled = blocks.into_iter().enumerate().map(block).filter(|range| range.class.value() > 0);
                prop_assert_eq!(by_sector(classes.ranges), by_sector(labelled));
            }
        }
    }

    #[test]
    fn hostile_bytes_neither_panic_nor_allocate_much(
        mut input in vec(any::<u8>(), 0..4000), has_legal_head in any::<bool>(), version in 0..3_u8, size in any::<u64>(),
    ) {
        if has_legal_head && input.len() >= METADATA_BYTES {
            input[..4].copy_from_slice(&[0xD5, 0x5C, version, 1]);
            input[12..16].fill(0);
            input[4] = 0;
        }
        let mut decoder = Decoder::default();
        let mut rest = &input[..];
        let result = decoder.feed(&mut rest);
        prop_assert!(decoder.classes.ranges.capacity() <= 2 * Classes::MAX_RANGES);
        if let Ok(Some(section)) = result {
            let _ = section.classes_for(size);
        }
    }
}
