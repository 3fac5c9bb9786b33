//! The steps of a random sequence. Steps refer to things by small numbers that are resolved when the
//! step is played, so that a sequence stays meaningful when steps are removed. A step has at most one
//! error, because a store may choose which of two errors it reports.

use proptest::option;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::sample::select;

use crate::checksum::{Algorithm, ChecksumScope};
use crate::version::Versioning;

#[derive(Debug, Clone)]
pub(super) enum Step {
    Put {
        place: usize,
        size: usize,
        seed: u64,
        algorithm: Option<Algorithm>,
        when: When,
        metadata: u8,
    },
    PutBroken {
        place: usize,
        size: usize,
        lie: Lie,
    },
    StageAndDrop {
        place: usize,
        size: usize,
    },
    Delete {
        place: usize,
        when: When,
    },
    Get {
        place: usize,
        select: Choice,
    },
    List {
        bucket: usize,
        prefix: usize,
        delimiter: bool,
        after: Option<usize>,
        limit: usize,
    },
    Copy {
        from: usize,
        to: usize,
        metadata: Option<u8>,
        tags: Option<u8>,
        when: When,
    },
    SetTags {
        place: usize,
        tags: u8,
    },
    SetClasses {
        place: usize,
        class: u8,
    },
    ObjectParts {
        place: usize,
        after: Option<i64>,
        limit: usize,
    },
    CreateUpload {
        place: usize,
        checksum: Option<(Algorithm, ChecksumScope)>,
        metadata: u8,
    },
    Part {
        upload: usize,
        number: i64,
        size: usize,
        seed: u64,
    },
    CopyPart {
        upload: usize,
        number: i64,
        from: usize,
        range: Option<(u64, u64)>,
    },
    Complete {
        upload: usize,
        parts: Parts,
        when: When,
    },
    Abort {
        upload: usize,
    },
    ListParts {
        upload: usize,
        after: Option<i64>,
        limit: usize,
    },
    ListUploads {
        bucket: usize,
        prefix: usize,
        delimiter: bool,
        limit: usize,
    },
    CreateBucket {
        bucket: usize,
    },
    DeleteBucket {
        bucket: usize,
    },
    SetVersioning {
        bucket: usize,
        versioning: Versioning,
    },
    ListVersions {
        bucket: usize,
        prefix: usize,
        delimiter: bool,
        after: Option<(usize, Option<usize>)>,
        limit: usize,
    },
    /// An action on a version of a place, by its age.
    OnVersion {
        place: usize,
        age: usize,
        action: VersionAction,
    },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum VersionAction {
    Get(Choice),
    Delete,
    SetTags(u8),
    SetClass(u8),
    CopyTo(usize),
}

/// A precondition, resolved against the key's state when the step is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    Absent,
    Exists,
    MatchesNow,
    MatchesOther,
    IsNow,
    IsOther,
}

/// A wrong declaration about the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lie {
    Longer,
    Shorter,
    Md5,
    Checksum,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Choice {
    Whole,
    Inclusive(u64, u64),
    From(u64),
    Suffix(u64),
    Part(i64),
}

/// The parts that a completion names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    All,
    LastOnly,
    FirstAndLast,
    Reversed,
    WithOneMissing,
    WithAnotherTag,
    None,
}

/// The number of addresses: pairs of a bucket and a key.
pub(super) const PLACES: usize = 10;
/// The number of buckets.
pub(super) const BUCKETS: usize = 2;
/// The number of prefixes.
pub(super) const PREFIXES: usize = 5;

fn place() -> impl Strategy<Value = usize> {
    0..PLACES
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0_usize..100,
        3 => select(vec![4095, 4096, 4097, 65_535, 65_536, 65_537]),
        1 => 100_usize..200_000,
    ]
}

fn part_size() -> impl Strategy<Value = usize> {
    prop_oneof![8 => size(), 1 => Just(5 << 20)]
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        8 => Just(When::Always),
        2 => Just(When::Absent),
        1 => Just(When::Exists),
        2 => Just(When::MatchesNow),
        1 => Just(When::MatchesOther),
        1 => Just(When::IsNow),
        1 => Just(When::IsOther),
    ]
}

fn choice() -> impl Strategy<Value = Choice> {
    let border = || prop_oneof![0_u64..120, 65_500_u64..65_600, 0_u64..200_000];
    prop_oneof![
        3 => Just(Choice::Whole),
        2 => (border(), border()).prop_map(|(a, b)| Choice::Inclusive(a.min(b), a.max(b))),
        1 => border().prop_map(Choice::From),
        1 => border().prop_map(Choice::Suffix),
        1 => (1_i64..5).prop_map(Choice::Part),
    ]
}

fn checksum() -> impl Strategy<Value = Option<(Algorithm, ChecksumScope)>> {
    option::of(select(vec![
        (Algorithm::Crc32, ChecksumScope::FullObject),
        (Algorithm::Crc32c, ChecksumScope::Composite),
        (Algorithm::Crc64Nvme, ChecksumScope::FullObject),
        (Algorithm::Sha1, ChecksumScope::Composite),
        (Algorithm::Sha256, ChecksumScope::Composite),
        (Algorithm::Sha512, ChecksumScope::Composite),
        (Algorithm::XxHash3, ChecksumScope::Composite),
    ]))
}

/// A completion. One with wrong parts has no condition: a step has at most one error.
fn complete() -> impl Strategy<Value = Step> {
    let wrong = vec![
        Parts::LastOnly,
        Parts::FirstAndLast,
        Parts::Reversed,
        Parts::WithOneMissing,
        Parts::WithAnotherTag,
        Parts::None,
    ];
    prop_oneof![
        3 => (upload(), when()).prop_map(|(upload, when)| Step::Complete { upload, parts: Parts::All, when }),
        2 => (upload(), select(wrong)).prop_map(|(upload, parts)| {
            Step::Complete { upload, parts, when: When::Always }
        }),
    ]
}

fn upload() -> impl Strategy<Value = usize> {
    0_usize..6
}

fn object_step() -> impl Strategy<Value = Step> {
    let algorithm = || option::of(select(Algorithm::ALL.to_vec()));
    let lie = || select(vec![Lie::Longer, Lie::Shorter, Lie::Md5, Lie::Checksum]);
    prop_oneof![
        6 => (place(), size(), 0..1000_u64, algorithm(), when(), 0..4_u8).prop_map(
            |(place, size, seed, algorithm, when, metadata)| Step::Put { place, size, seed, algorithm, when, metadata }
        ),
        1 => (place(), 1..70_000_usize, lie()).prop_map(|(place, size, lie)| Step::PutBroken { place, size, lie }),
        1 => (place(), size()).prop_map(|(place, size)| Step::StageAndDrop { place, size }),
        2 => (place(), when()).prop_map(|(place, when)| Step::Delete { place, when }),
        5 => (place(), choice()).prop_map(|(place, select)| Step::Get { place, select }),
        3 => (place(), place(), option::of(0..4_u8), option::of(0..4_u8), when()).prop_map(
            |(from, to, metadata, tags, when)| Step::Copy { from, to, metadata, tags, when }
        ),
        1 => (place(), 0..4_u8).prop_map(|(place, tags)| Step::SetTags { place, tags }),
        1 => (place(), 0..4_u8).prop_map(|(place, class)| Step::SetClasses { place, class }),
        1 => (place(), option::of(1..4_i64), 1..3_usize).prop_map(
            |(place, after, limit)| Step::ObjectParts { place, after, limit }
        ),
    ]
}

fn upload_step() -> impl Strategy<Value = Step> {
    let after = || option::of(1..5_i64);
    prop_oneof![
        2 => (place(), checksum(), 0..4_u8).prop_map(
            |(place, checksum, metadata)| Step::CreateUpload { place, checksum, metadata }
        ),
        5 => (upload(), 1..5_i64, part_size(), 0..1000_u64).prop_map(
            |(upload, number, size, seed)| Step::Part { upload, number, size, seed }
        ),
        1 => (upload(), 1..5_i64, place(), option::of((0_u64..50, 0_u64..50))).prop_map(
            |(upload, number, from, range)| Step::CopyPart { upload, number, from, range }
        ),
        3 => complete(),
        1 => upload().prop_map(|upload| Step::Abort { upload }),
        1 => (upload(), after(), 1..4_usize).prop_map(|(upload, after, limit)| Step::ListParts { upload, after, limit }),
    ]
}

fn bucket_step() -> impl Strategy<Value = Step> {
    let (bucket, prefix) = (|| 0..BUCKETS, || 0..PREFIXES);
    let delimiter = proptest::bool::ANY;
    prop_oneof![
        8 => (bucket(), prefix(), delimiter, option::of(place()), 1..6_usize).prop_map(
            |(bucket, prefix, delimiter, after, limit)| Step::List { bucket, prefix, delimiter, after, limit }
        ),
        3 => (bucket(), prefix(), delimiter, 1..4_usize).prop_map(
            |(bucket, prefix, delimiter, limit)| Step::ListUploads { bucket, prefix, delimiter, limit }
        ),
        1 => bucket().prop_map(|bucket| Step::CreateBucket { bucket }),
        1 => bucket().prop_map(|bucket| Step::DeleteBucket { bucket }),
    ]
}

fn version_step() -> impl Strategy<Value = Step> {
    let (bucket, age) = (|| 0..BUCKETS, || 0..4_usize);
    let versioning = prop_oneof![3 => Just(Versioning::Enabled), 1 => Just(Versioning::Suspended)];
    let action = prop_oneof![
        3 => choice().prop_map(VersionAction::Get),
        4 => Just(VersionAction::Delete),
        1 => (0..4_u8).prop_map(VersionAction::SetTags),
        1 => (0..4_u8).prop_map(VersionAction::SetClass),
        1 => place().prop_map(VersionAction::CopyTo),
    ];
    prop_oneof![
        1 => (bucket(), versioning).prop_map(|(bucket, versioning)| Step::SetVersioning { bucket, versioning }),
        4 => (bucket(), 0..PREFIXES, proptest::bool::ANY, option::of((place(), option::of(age()))), 1..6_usize).prop_map(
            |(bucket, prefix, delimiter, after, limit)| Step::ListVersions { bucket, prefix, delimiter, after, limit }
        ),
        6 => (place(), age(), action).prop_map(|(place, age, action)| Step::OnVersion { place, age, action }),
    ]
}

/// Any step. Only with `with_versions` does a bucket get versions.
pub(super) fn any_step(with_versions: bool) -> impl Strategy<Value = Step> {
    let weight = if with_versions { 4 } else { 0 };
    prop_oneof![5 => object_step(), 3 => upload_step(), 2 => bucket_step(), weight => version_step()]
}
