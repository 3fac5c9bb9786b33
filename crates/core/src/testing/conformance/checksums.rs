//! Checksums: declared values are verified before anything is stored, and requested checksums are stored.

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::error::Reason;
use crate::object::Expected;
use crate::store::StageRequest;

use super::fixture::{Fixture, md5, pattern, reason};

super::theme! { "checksums":
    of_all_algorithms_are_kept needs Checksums,
    of_several_algorithms_are_kept_together needs SeveralChecksums,
    that_are_promised_rightly_pass,
    that_are_promised_wrongly_store_nothing,
    that_were_not_planned_are_a_defect,
}

fn computing(algorithms: &[Algorithm]) -> StageRequest {
    StageRequest { algorithms: algorithms.to_vec(), ..StageRequest::default() }
}

async fn of_all_algorithms_are_kept(desk: Fixture) {
    for size in [0, 1, 65_536, 300_001] {
        let bytes = pattern(size, 1);
        for algorithm in Algorithm::ALL {
            let committed = desk.put_as("k", bytes.clone(), computing(&[algorithm])).await;
            assert_eq!(committed.checksums, [Checksum::compute(algorithm, &bytes)], "{size} bytes");
            let info = desk.head("k").await;
            assert_eq!((&info.checksums, info.scope), (&committed.checksums, ChecksumScope::FullObject));
        }
    }
}

async fn of_several_algorithms_are_kept_together(desk: Fixture) {
    let bytes = pattern(70_000, 1);
    desk.put_as("k", bytes.clone(), computing(&Algorithm::ALL)).await;
    let info = desk.head("k").await;
    for algorithm in Algorithm::ALL {
        assert!(info.checksums.contains(&Checksum::compute(algorithm, &bytes)), "{algorithm:?}");
    }
}

async fn that_are_promised_rightly_pass(desk: Fixture) {
    for size in [0, 10, 200_000] {
        let bytes = pattern(size, 1);
        let expected = Expected {
            size: Some(size as u64),
            md5: Some(md5(&bytes)),
            checksums: Algorithm::ALL.map(|algorithm| Checksum::compute(algorithm, &bytes)).to_vec(),
            ..Expected::default()
        };
        let request = StageRequest { verify_md5: true, ..computing(&Algorithm::ALL) };
        let committed = desk.try_put("k", bytes.clone(), request, expected).await;
        committed.expect("all declared values are correct");
        assert!(desk.read("k").await == bytes);
    }
}

async fn that_are_promised_wrongly_store_nothing(desk: Fixture) {
    desk.put("old", "stays").await;
    // A store without real generations may return another second for a write than the one it stores.
    let old = desk.head("old").await;
    for size in [0, 10, 200_000] {
        let bytes = pattern(size, 1);
        let mut wrong = vec![
            (Expected { size: Some(size as u64 + 1), ..Expected::default() }, Reason::IncompleteBody),
            (Expected { md5: Some(md5(b"other")), ..Expected::default() }, Reason::BadDigest),
        ];
        if let Some(less) = (size as u64).checked_sub(1) {
            wrong.push((Expected { size: Some(less), ..Expected::default() }, Reason::InvalidRequest));
        }
        for algorithm in Algorithm::ALL {
            let checksums = vec![Checksum::compute(algorithm, b"other")];
            wrong.push((Expected { checksums, ..Expected::default() }, Reason::BadDigest));
        }
        for (expected, refused) in wrong {
            for key in ["new", "old"] {
                let request = StageRequest { verify_md5: true, ..computing(&Algorithm::ALL) };
                let result = desk.try_put(key, bytes.clone(), request, expected.clone()).await;
                assert_eq!(reason(result), refused, "{size} bytes with {expected:?}");
            }
            desk.assert_absent("new").await;
            assert_eq!(desk.head("old").await, old);
        }
    }
    assert_eq!(desk.names().await, ["old"]);
    assert_eq!(desk.read("old").await, "stays");
}

async fn that_were_not_planned_are_a_defect(desk: Fixture) {
    let expected =
        Expected { checksums: vec![Checksum::compute(Algorithm::Sha1, b"bytes")], ..Expected::default() };
    let result = desk.try_put("k", "bytes", computing(&[Algorithm::Crc32]), expected).await;
    assert_eq!(reason(result), Reason::Defect);
    desk.assert_absent("k").await;
}
