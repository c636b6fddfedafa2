//! Numbers that look random, and are the same each time.

/// A generator (xorshift64*).
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }

    /// The number of one of so many machines, from 1.
    pub(super) fn machine(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn every_machine_is_drawn() {
        let mut draw = Draw::new(7);
        let mut counts = [0; 4];
        for _ in 0..400 {
            counts[draw.machine(4) - 1] += 1;
        }
        assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
    }
}
