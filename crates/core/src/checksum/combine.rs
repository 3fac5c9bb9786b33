//! Combination of CRCs: the CRC of two pieces is the first CRC, shifted by the second piece's length, plus the
//! second CRC. A shift by n bytes is a multiplication by x^(8n) modulo the CRC's polynomial, in
//! GF(2). No correction terms are needed, because all of S3's CRCs are reflected and have all ones as initial value and
//! final XOR.

use super::Algorithm;

/// A CRC's polynomial, reflected, in the low `width` bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Polynomial {
    width: u32,
    value: u64,
}

pub(super) const CRC64_NVME: Polynomial = Polynomial { width: 64, value: 0x9a6c_9329_ac4b_c9b5 };
const CRC32: Polynomial = Polynomial { width: 32, value: 0xedb8_8320 };
const CRC32C: Polynomial = Polynomial { width: 32, value: 0x82f6_3b78 };

impl Polynomial {
    pub const fn for_algorithm(algorithm: Algorithm) -> Option<Self> {
        match algorithm {
            Algorithm::Crc32 => Some(CRC32),
            Algorithm::Crc32c => Some(CRC32C),
            Algorithm::Crc64Nvme => Some(CRC64_NVME),
            _ => None,
        }
    }

    /// The product of two polynomials. The highest bit is x^0.
    pub const fn multiply(self, a: u64, mut b: u64) -> u64 {
        let mut product = 0;
        let mut bit = 1_u64 << (self.width - 1);
        while bit != 0 {
            // Without branches: the bits are unpredictable.
            product ^= b & 0_u64.wrapping_sub((a & bit != 0) as u64);
            b = (b >> 1) ^ (self.value & 0_u64.wrapping_sub(b & 1));
            bit >>= 1;
        }
        product
    }

    /// x^(8 * bytes): multiplying a CRC by it shifts the CRC by that many bytes.
    pub const fn shift(self, bytes: u64) -> u64 {
        let mut power = 1_u64 << (self.width - 1);
        // x^8, then its squares.
        let mut square = 1_u64 << (self.width - 9);
        let mut left = bytes;
        while left > 0 {
            if left & 1 == 1 {
                power = self.multiply(power, square);
            }
            square = self.multiply(square, square);
            left >>= 1;
        }
        power
    }
}
