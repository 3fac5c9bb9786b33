//! Size classes of requests.

/// Base-2 logarithm of the largest size of the first class: 4 KiB. Below 64 KiB the size hardly affects latency (Hou
/// 2017, section 4.1.2), so sizes below 4 KiB need no classes of their own.
const FIRST_BITS: u32 = 12;

/// A size class: the first holds sizes up to 4 KiB, each further one up to twice the previous, up to 256 MiB; the last
/// holds all larger sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Number of size classes.
    pub const COUNT: usize = 18;

    const LAST: u8 = 17;

    /// The class of a size.
    #[must_use]
    pub const fn for_bytes(bytes: u64) -> Self {
        let doublings = u64::BITS - (bytes.saturating_sub(1) >> FIRST_BITS).leading_zeros();
        Self(if doublings < Self::LAST as u32 { doublings as u8 } else { Self::LAST })
    }

    /// The largest size of the class; `None` for the last class.
    #[must_use]
    pub const fn max_bytes(self) -> Option<u64> {
        if self.0 == Self::LAST { None } else { Some(1 << (FIRST_BITS + self.0 as u32)) }
    }

    /// All classes, in ascending order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=Self::LAST).map(Self)
    }

    /// Its index among all classes.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn class_bounds_are_powers_of_two() {
        let class = |bytes| SizeClass::for_bytes(bytes).index();
        assert_eq!([0, 1, 4096, 4097, 8192, 8193].map(class), [0, 0, 0, 1, 1, 2]);
        assert_eq!([1 << 28, (1 << 28) + 1, u64::MAX].map(class), [16, 17, 17]);
        assert_eq!(SizeClass::all().count(), SizeClass::COUNT);
    }

    proptest! {
        #[test]
        fn size_is_within_the_bounds_of_its_class(bits in 0_u32..64, low in any::<u64>()) {
            let bytes = low >> bits;
            let class = SizeClass::for_bytes(bytes);
            prop_assert!(class.max_bytes().is_none_or(|most| bytes <= most));
            let below = SizeClass::all().take_while(|other| *other < class).last();
            prop_assert!(below.and_then(SizeClass::max_bytes).is_none_or(|most| bytes > most));
        }
    }
}
