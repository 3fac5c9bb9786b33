//! How an object is carried: in how many requests of what size. Until a store has been sampled, by size alone.

/// The most parts that S3 takes of one object.
const MOST_PARTS: u64 = 10_000;
/// The least that S3 takes as a part, but for the last.
pub const LEAST_PART: u64 = 5 << 20;

/// Bytes of one object that are in flight at a time: under a twentieth of 2 GiB.
const IN_FLIGHT: u64 = 64 << 20;
/// Requests of one object at a time, however large they are.
const LEAST_PARALLEL: usize = 2;

/// Objects to read at a time.
const LEAST_READERS: usize = 8;
/// The most, unless somebody asks for more.
pub const MOST_READERS: usize = 64;

/// The chunk size and the parallelism of transfers with one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of one request.
    pub chunk_bytes: u64,
    /// Requests at a time, over all objects.
    pub requests: usize,
    /// Bytes of one request where they must come in order: those ahead of the first wait in memory.
    pub stream_bytes: u64,
    /// Bytes that may wait in memory for one object.
    pub memory_bytes: u64,
}

impl Default for Plan {
    /// Chunks of 8 MiB: large enough that a request's own cost is a hundredth of carrying it, small enough that sending
    /// one again costs little. 32 requests hide a round trip of 50 ms at some 5 GB/s of such chunks.
    fn default() -> Self {
        Self { chunk_bytes: 8 << 20, requests: 32, stream_bytes: 2 << 20, memory_bytes: 16 << 20 }
    }
}

impl Plan {
    /// The size of the parts that an object of `size` bytes is sent in; `None` where one request is better.
    #[must_use]
    pub const fn part_bytes(&self, size: u64) -> Option<u64> {
        // Two requests more, to begin and to complete, are worth it from three parts on.
        if size < self.chunk_bytes.saturating_mul(3) {
            return None;
        }
        let mut bytes = if self.chunk_bytes < LEAST_PART { LEAST_PART } else { self.chunk_bytes };
        while size.div_ceil(bytes) > MOST_PARTS {
            bytes *= 2;
        }
        Some(bytes)
    }

    /// Requests of one object at a time, of so many bytes each: what is in flight when a transfer is killed is sent again.
    #[must_use]
    pub fn of_one_object(&self, bytes: u64) -> usize {
        let fits = IN_FLIGHT / bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(LEAST_PARALLEL, self.requests.max(LEAST_PARALLEL))
    }

    /// Objects to read at a time where their mean size is this: small ones cost a round trip each and little else, so
    /// that many are asked for together; of large ones a few fill any line (Hou 2017, figure 20).
    #[must_use]
    pub fn readers(&self, mean_bytes: u64) -> usize {
        let fits = self.memory_bytes / mean_bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(LEAST_READERS, self.requests.max(MOST_READERS))
    }

    /// Chunks of a stream that are fetched ahead of the one that is read.
    #[must_use]
    pub fn ahead(&self) -> usize {
        let fits = self.memory_bytes / self.stream_bytes.max(1);
        usize::try_from(fits).unwrap_or(usize::MAX).clamp(1, self.requests.max(1))
    }

    /// The chunks of an object of `size` bytes, as offset and length, in order.
    pub fn chunks(size: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let bytes = bytes.max(1);
        (0..size.div_ceil(bytes)).map(move |n| (n * bytes, bytes.min(size - n * bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_objects_are_one_request() {
        let plan = Plan::default();
        assert_eq!(plan.part_bytes(0), None);
        assert_eq!(plan.part_bytes((24 << 20) - 1), None);
        assert_eq!(plan.part_bytes(24 << 20), Some(8 << 20));
        assert_eq!(plan.part_bytes(100 << 30), Some(16 << 20));
        assert_eq!(Plan { chunk_bytes: 1, ..Plan::default() }.part_bytes(100), Some(5 << 20));
    }

    proptest! {
        #[test]
        fn parts_are_what_s3_takes(size in 1_u64..5 << 40, chunk in 1_u64..1 << 30) {
            if let Some(bytes) = (Plan { chunk_bytes: chunk, ..Plan::default() }).part_bytes(size) {
                prop_assert!(bytes >= LEAST_PART && size.div_ceil(bytes) <= MOST_PARTS);
            }
        }

        #[test]
        fn chunks_cover_the_object(size in 0_u64..1_000_000, bytes in 1_u64..100_000) {
            let mut at = 0;
            for (offset, length) in Plan::chunks(size, bytes) {
                prop_assert!(offset == at && length > 0 && length <= bytes);
                at += length;
            }
            prop_assert_eq!(at, size);
        }
    }
}
