//! The random values of TPC-C (clauses 2.1.6 and 4.3.2).

use sim::Rng;

/// A source of random numbers and words.
#[derive(Clone, Debug)]
pub(super) struct TpccRandom(Rng);

/// The constants C of the function NURand (clause 2.1.6.1), which are chosen once for each run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Constants {
    /// Constant C for last names while the tables are filled.
    pub(super) last_load: u32,
    /// Constant C for last names in transactions.
    pub(super) last_run: u32,
    /// The constant C of TPC-C for random customer numbers.
    pub(super) customer: u32,
    /// The constant C of TPC-C for random item numbers.
    pub(super) item: u32,
}

impl Constants {
    /// Chooses constants that the standard permits. The two for last names must differ by 65 to 119, but not by 96 or
    /// 112.
    pub(super) fn choose(random: &mut TpccRandom) -> Self {
        let last_load = random.within(0, 255);
        let last_run = loop {
            let c = random.within(0, 255);
            if is_permitted(last_load.abs_diff(c)) {
                break c;
            }
        };
        Self { last_load, last_run, customer: random.within(0, 1023), item: random.within(0, 8191) }
    }
}

fn is_permitted(delta: u32) -> bool {
    (65..=119).contains(&delta) && delta != 96 && delta != 112
}

const LETTERS: &[u8; 26] = b"abcdefghijklmnopqrstuvwxyz";
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

impl TpccRandom {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// Returns an independent generator of random numbers, for another client.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }

    /// Returns a uniformly distributed number in `x..=y`.
    pub(super) fn within(&mut self, x: u32, y: u32) -> u32 {
        x + self.0.below(u64::from(y - x) + 1) as u32
    }

    /// Returns true in `percent` of a hundred cases.
    pub(super) fn percent(&mut self, percent: u32) -> bool {
        self.0.chance(percent)
    }

    /// Returns a random pause in seconds, exponentially distributed with this mean.
    pub(super) fn pause(&mut self, mean: f64) -> f64 {
        self.0.exponential(mean)
    }

    /// Returns the value of the function NURand(A, x, y), clause 2.1.6.
    pub(super) fn uneven(&mut self, a: u32, c: u32, x: u32, y: u32) -> u32 {
        (((self.within(0, a) | self.within(x, y)) + c) % (y - x + 1)) + x
    }

    pub(super) fn letters(&mut self, least: u32, most: u32) -> String {
        (0..self.within(least, most))
            .map(|_| char::from(LETTERS[self.0.below(26) as usize]))
            .collect()
    }

    pub(super) fn digits(&mut self, count: u32) -> String {
        (0..count).map(|_| char::from(b'0' + self.0.below(10) as u8)).collect()
    }

    /// Returns random letters, with ORIGINAL in one of ten strings (clause 4.3.3.1).
    pub(super) fn data(&mut self) -> String {
        let mut data = self.letters(26, 50);
        if self.percent(10) {
            let at = self.0.below(data.len() as u64 - 7) as usize;
            data.replace_range(at..at + 8, "ORIGINAL");
        }
        data
    }

    /// Returns the numbers from 1 to `of` in random order.
    pub(super) fn permutation(&mut self, of: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (1..=of).collect();
        self.0.shuffle(&mut all);
        all
    }
}

/// Returns the last name that the standard assigns to a number below 1000 (clause 4.3.2.3).
pub(super) fn last_name(number: u32) -> String {
    [number / 100, number / 10 % 10, number % 10].map(|digit| SYLLABLES[digit as usize]).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_names_are_those_of_the_standard() {
        // The number of the example in the standard.
        assert_eq!(last_name(371), "PRICALLYOUGHT");
        assert_eq!(last_name(40), "BARPRESBAR");
    }

    #[test]
    fn uneven_numbers_are_in_range_and_uneven() {
        let mut random = TpccRandom::new(3);
        let c = Constants::choose(&mut random);
        assert!(is_permitted(c.last_load.abs_diff(c.last_run)), "{c:?}");
        let mut drawn = vec![0u32; 3001];
        (0..300_000).for_each(|_| drawn[random.uneven(1023, c.customer, 1, 3000) as usize] += 1);
        assert_eq!(drawn[0], 0);
        drawn.sort_unstable_by(|a, b| b.cmp(a));
        // If the numbers were uniform, the most frequent tenth of the customers would get about 10 % of the draws. The
        // bitwise OR in NURand gives this tenth more than a third.
        let most: u32 = drawn[..300].iter().sum();
        assert!((90_000..200_000).contains(&most), "{most}");
        let small: Vec<u32> = (0..1000).map(|_| random.uneven(8191, c.item, 1, 200)).collect();
        assert!(small.iter().all(|n| (1..=200).contains(n)));
    }

    #[test]
    fn a_tenth_of_the_data_contains_original() {
        let mut random = TpccRandom::new(1);
        let all: Vec<String> = (0..10_000).map(|_| random.data()).collect();
        let original = all.iter().filter(|data| data.contains("ORIGINAL")).count();
        assert!((850..1150).contains(&original), "{original}");
        assert!(all.iter().all(|data| (26..=50).contains(&data.len())));
    }
}
