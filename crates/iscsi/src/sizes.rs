//! Counts PDUs by size class, as table 3 of the STICS paper does.

/// The number of PDUs in one direction by size, and their total size. The size of a PDU includes
/// headers, data and padding, but no digests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PduSizes {
    /// PDUs of less than 64, 128, 256, 512 and 1024 bytes, and of 1024 bytes or more: the classes
    /// of STICS, table 3.
    pub classes: [u64; 6],
    /// Total size of all PDUs in bytes.
    pub bytes: u64,
}

impl PduSizes {
    /// Counts a PDU of `bytes` bytes in its size class.
    pub fn count(&mut self, bytes: usize) {
        let bits = usize::BITS - bytes.leading_zeros();
        self.classes[bits.saturating_sub(6).min(5) as usize] += 1;
        self.bytes += bytes as u64;
    }
}

impl std::ops::AddAssign for PduSizes {
    fn add_assign(&mut self, other: Self) {
        self.classes.iter_mut().zip(other.classes).for_each(|(sum, count)| *sum += count);
        self.bytes += other.bytes;
    }
}

/// Subtracts an earlier count, which gives the PDUs counted since.
impl std::ops::Sub for PduSizes {
    type Output = Self;

    fn sub(mut self, earlier: Self) -> Self {
        self.classes.iter_mut().zip(earlier.classes).for_each(|(now, then)| *now -= then);
        self.bytes -= earlier.bytes;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_those_of_the_table() {
        let mut sizes = PduSizes::default();
        for bytes in [0, 48, 63, 64, 127, 128, 255, 256, 511, 512, 1023, 1024, 1 << 20] {
            sizes.count(bytes);
        }
        assert_eq!(sizes.classes, [3, 2, 2, 2, 2, 2]);
        let before = sizes;
        sizes.count(100);
        assert_eq!((sizes - before).classes, [0, 1, 0, 0, 0, 0]);
        assert_eq!((sizes - before).bytes, 100);
    }
}
