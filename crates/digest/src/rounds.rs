//! The 64 steps of one MD5 block (RFC 1321 section 3.4) as a macro over vector operations.
//!
//! The invoking module supplies `add`, `rotate::<S>`, `order_barrier`, `splat` and the mixing functions `f`, `g`,
//! `h`, `i`, so that one description of the algorithm serves every register width. Only `b` is on the
//! critical path: `a + word + constant` is summed first and kept in that order by `order_barrier`.

/// Sines of RFC 1321 section 3.4: `floor(2^32 * |sin(step + 1)|)`.
pub(crate) const SINES: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];

/// One step: `a = b + rotate(a + word + sine + mix(b, c, d))`; the mixing function adds to its first argument.
macro_rules! step {
    ($mix:ident, $a:ident, $b:ident, $c:ident, $d:ident, $words:ident[$word:literal], $shift:literal, $step:literal) => {
        $a = add(
            $b,
            rotate::<$shift>($mix(
                order_barrier(add(add($a, $words[$word]), splat(SINES[$step]))),
                $b,
                $c,
                $d,
            )),
        );
    };
}

/// All 64 steps on the named state variables and message words.
macro_rules! rounds {
    ($a:ident, $b:ident, $c:ident, $d:ident, $words:ident) => {
        step!(f, $a, $b, $c, $d, $words[0], 7, 0);
        step!(f, $d, $a, $b, $c, $words[1], 12, 1);
        step!(f, $c, $d, $a, $b, $words[2], 17, 2);
        step!(f, $b, $c, $d, $a, $words[3], 22, 3);
        step!(f, $a, $b, $c, $d, $words[4], 7, 4);
        step!(f, $d, $a, $b, $c, $words[5], 12, 5);
        step!(f, $c, $d, $a, $b, $words[6], 17, 6);
        step!(f, $b, $c, $d, $a, $words[7], 22, 7);
        step!(f, $a, $b, $c, $d, $words[8], 7, 8);
        step!(f, $d, $a, $b, $c, $words[9], 12, 9);
        step!(f, $c, $d, $a, $b, $words[10], 17, 10);
        step!(f, $b, $c, $d, $a, $words[11], 22, 11);
        step!(f, $a, $b, $c, $d, $words[12], 7, 12);
        step!(f, $d, $a, $b, $c, $words[13], 12, 13);
        step!(f, $c, $d, $a, $b, $words[14], 17, 14);
        step!(f, $b, $c, $d, $a, $words[15], 22, 15);
        step!(g, $a, $b, $c, $d, $words[1], 5, 16);
        step!(g, $d, $a, $b, $c, $words[6], 9, 17);
        step!(g, $c, $d, $a, $b, $words[11], 14, 18);
        step!(g, $b, $c, $d, $a, $words[0], 20, 19);
        step!(g, $a, $b, $c, $d, $words[5], 5, 20);
        step!(g, $d, $a, $b, $c, $words[10], 9, 21);
        step!(g, $c, $d, $a, $b, $words[15], 14, 22);
        step!(g, $b, $c, $d, $a, $words[4], 20, 23);
        step!(g, $a, $b, $c, $d, $words[9], 5, 24);
        step!(g, $d, $a, $b, $c, $words[14], 9, 25);
        step!(g, $c, $d, $a, $b, $words[3], 14, 26);
        step!(g, $b, $c, $d, $a, $words[8], 20, 27);
        step!(g, $a, $b, $c, $d, $words[13], 5, 28);
        step!(g, $d, $a, $b, $c, $words[2], 9, 29);
        step!(g, $c, $d, $a, $b, $words[7], 14, 30);
        step!(g, $b, $c, $d, $a, $words[12], 20, 31);
        step!(h, $a, $b, $c, $d, $words[5], 4, 32);
        step!(h, $d, $a, $b, $c, $words[8], 11, 33);
        step!(h, $c, $d, $a, $b, $words[11], 16, 34);
        step!(h, $b, $c, $d, $a, $words[14], 23, 35);
        step!(h, $a, $b, $c, $d, $words[1], 4, 36);
        step!(h, $d, $a, $b, $c, $words[4], 11, 37);
        step!(h, $c, $d, $a, $b, $words[7], 16, 38);
        step!(h, $b, $c, $d, $a, $words[10], 23, 39);
        step!(h, $a, $b, $c, $d, $words[13], 4, 40);
        step!(h, $d, $a, $b, $c, $words[0], 11, 41);
        step!(h, $c, $d, $a, $b, $words[3], 16, 42);
        step!(h, $b, $c, $d, $a, $words[6], 23, 43);
        step!(h, $a, $b, $c, $d, $words[9], 4, 44);
        step!(h, $d, $a, $b, $c, $words[12], 11, 45);
        step!(h, $c, $d, $a, $b, $words[15], 16, 46);
        step!(h, $b, $c, $d, $a, $words[2], 23, 47);
        step!(i, $a, $b, $c, $d, $words[0], 6, 48);
        step!(i, $d, $a, $b, $c, $words[7], 10, 49);
        step!(i, $c, $d, $a, $b, $words[14], 15, 50);
        step!(i, $b, $c, $d, $a, $words[5], 21, 51);
        step!(i, $a, $b, $c, $d, $words[12], 6, 52);
        step!(i, $d, $a, $b, $c, $words[3], 10, 53);
        step!(i, $c, $d, $a, $b, $words[10], 15, 54);
        step!(i, $b, $c, $d, $a, $words[1], 21, 55);
        step!(i, $a, $b, $c, $d, $words[8], 6, 56);
        step!(i, $d, $a, $b, $c, $words[15], 10, 57);
        step!(i, $c, $d, $a, $b, $words[6], 15, 58);
        step!(i, $b, $c, $d, $a, $words[13], 21, 59);
        step!(i, $a, $b, $c, $d, $words[4], 6, 60);
        step!(i, $d, $a, $b, $c, $words[11], 10, 61);
        step!(i, $c, $d, $a, $b, $words[2], 15, 62);
        step!(i, $b, $c, $d, $a, $words[9], 21, 63);
    };
}

pub(crate) use {rounds, step};
