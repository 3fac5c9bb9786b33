//! The loop over blocks that every SIMD kernel shares, as macros: the invoking module supplies the operations
//! of `rounds!` and a transposition.
//!
//! Closures and `array::map` are kept out of the loops: they would not be compiled with the kernel's target
//! features, and so not inlined.

/// Defines `run`, which hashes `runs`, all of one length, into the `$lanes` chaining values of `chains`: word A
/// of every lane, then B, C and D.
macro_rules! kernel {
    ($features:literal, $vector:ty, $lanes:literal, $transpose:path) => {
        #[target_feature(enable = $features)]
        pub(crate) fn run(chains: &mut [[u32; $lanes]; 4], runs: &[&[Block]; $lanes]) {
            let [a, b, c, d] = *chains;
            let (mut a, mut b, mut c, mut d) =
                (into_vector(a), into_vector(b), into_vector(c), into_vector(d));
            for block in 0..runs[0].len() {
                let mut blocks = [&runs[0][block]; $lanes];
                for (slot, run) in blocks.iter_mut().zip(runs) {
                    *slot = &run[block];
                }
                let words = $transpose(&blocks);
                let (a_before, b_before, c_before, d_before) = (a, b, c, d);
                rounds!(a, b, c, d, words);
                a = add(a, a_before);
                b = add(b, b_before);
                c = add(c, c_before);
                d = add(d, d_before);
            }
            *chains = [from_vector(a), from_vector(b), from_vector(c), from_vector(d)];
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn into_vector(words: [u32; $lanes]) -> $vector {
            // SAFETY: both types are the same number of plain bytes, and every bit pattern is valid for both.
            unsafe { std::mem::transmute::<[u32; $lanes], $vector>(words) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn from_vector(vector: $vector) -> [u32; $lanes] {
            // SAFETY: both types are the same number of plain bytes, and every bit pattern is valid for both.
            unsafe { std::mem::transmute::<$vector, [u32; $lanes]>(vector) }
        }
    };
}

/// The operations of `rounds!` on two registers, each half by the operation of the `$single` module: two independent
/// chains of dependent instructions, which the CPU overlaps.
macro_rules! paired_operations {
    ($features:literal, $single:ident, $vector:ident) => {
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct Pair($vector, $vector);

        #[inline]
        #[target_feature(enable = $features)]
        fn add(x: Pair, y: Pair) -> Pair {
            Pair($single::add(x.0, y.0), $single::add(x.1, y.1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn rotate<const SHIFT: i32>(x: Pair) -> Pair {
            Pair($single::rotate::<SHIFT>(x.0), $single::rotate::<SHIFT>(x.1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn splat(word: u32) -> Pair {
            Pair($single::splat(word), $single::splat(word))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn order_barrier(x: Pair) -> Pair {
            Pair($single::order_barrier(x.0), $single::order_barrier(x.1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn f(sum: Pair, b: Pair, c: Pair, d: Pair) -> Pair {
            Pair($single::f(sum.0, b.0, c.0, d.0), $single::f(sum.1, b.1, c.1, d.1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn g(sum: Pair, b: Pair, c: Pair, d: Pair) -> Pair {
            Pair($single::g(sum.0, b.0, c.0, d.0), $single::g(sum.1, b.1, c.1, d.1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn h(sum: Pair, b: Pair, c: Pair, d: Pair) -> Pair {
            Pair($single::h(sum.0, b.0, c.0, d.0), $single::h(sum.1, b.1, c.1, d.1))
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn i(sum: Pair, b: Pair, c: Pair, d: Pair) -> Pair {
            Pair($single::i(sum.0, b.0, c.0, d.0), $single::i(sum.1, b.1, c.1, d.1))
        }
    };
}

/// [`kernel`] for the pairs of `paired_operations`, `$half` lanes in each register.
macro_rules! paired_kernel {
    ($features:literal, $half:literal, $lanes:literal, $transpose:path) => {
        kernel!($features, Pair, $lanes, paired_words);

        #[inline]
        #[target_feature(enable = $features)]
        fn paired_words(blocks: &[&Block; $lanes]) -> [Pair; 16] {
            let (low, high) = blocks.split_at($half);
            let low = $transpose(low.as_array().expect("half of the lanes"));
            let high = $transpose(high.as_array().expect("half of the lanes"));
            let mut words = [Pair(low[0], high[0]); 16];
            for (word, slot) in words.iter_mut().enumerate() {
                *slot = Pair(low[word], high[word]);
            }
            words
        }
    };
}

pub(crate) use {kernel, paired_kernel, paired_operations};
