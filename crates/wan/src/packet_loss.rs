//! Random loss of packets: independent, or in bursts.

use crate::{BurstLossModel, PacketLossModel, random_stream::RandomStream};

/// Decides for each packet whether it is lost. For each packet, the process draws two random numbers, whatever the
/// settings are. Therefore the loss of packet n depends on the seed and the present settings, but not on former
/// settings.
#[derive(Clone, Debug)]
pub(crate) struct LossProcess {
    dice: RandomStream,
    is_bad: bool,
}

impl LossProcess {
    pub fn new(dice: RandomStream) -> Self {
        Self { dice, is_bad: false }
    }

    /// Returns true if the next packet is lost.
    pub fn loses(&mut self, loss: &PacketLossModel) -> bool {
        let (turn, fall) = (self.dice.unit(), self.dice.unit());
        match *loss {
            PacketLossModel::Random(share) => fall < share,
            PacketLossModel::Bursts(BurstLossModel { begin, end, loss_bad, loss_good }) => {
                self.is_bad = if self.is_bad { turn >= end } else { turn < begin };
                fall < if self.is_bad { loss_bad } else { loss_good }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::Rng;

    const PACKETS: usize = 1_000_000;

    fn lost(loss: PacketLossModel, seed: u64) -> Vec<bool> {
        let mut process = LossProcess::new(RandomStream::of(&mut Rng::new(seed)));
        (0..PACKETS).map(|_| process.loses(&loss)).collect()
    }

    fn share(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    #[test]
    fn the_loss_is_within_five_percent_of_the_configured_loss() {
        for set in [0.01, 0.027, 0.3] {
            for seed in 1..4 {
                let found = share(&lost(PacketLossModel::Random(set), seed));
                assert!((found / set - 1.0).abs() < 0.05, "{found} of {set}");
            }
        }
        assert_eq!(share(&lost(PacketLossModel::Random(0.0), 1)), 0.0);
        assert_eq!(share(&lost(PacketLossModel::Random(1.0), 1)), 1.0);
    }

    #[test]
    fn bursts_have_the_configured_length_and_distance() {
        let burst = BurstLossModel { begin: 0.005, end: 0.2, loss_bad: 1.0, loss_good: 0.0 };
        let lost = lost(PacketLossModel::Bursts(burst), 1);
        let mean = PacketLossModel::Bursts(burst).mean();
        assert!((mean - 0.0244).abs() < 0.0001);
        assert!((share(&lost) / mean - 1.0).abs() < 0.05, "{}", share(&lost));
        let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
        let length = share(&lost) * PACKETS as f64 / runs as f64;
        assert!((length * burst.end - 1.0).abs() < 0.05, "bursts of {length} packets");
        // After a lost packet, the next is lost unless the burst ends.
        let follow = lost.windows(2).filter(|pair| pair[0] && pair[1]).count() as f64;
        let after = follow / (share(&lost) * PACKETS as f64);
        assert!((after - 0.8).abs() < 0.02, "{after}");
    }

    #[test]
    fn bad_and_good_phases_have_their_own_loss_rates() {
        let burst = BurstLossModel { begin: 0.01, end: 0.1, loss_bad: 0.5, loss_good: 0.01 };
        let found = share(&lost(PacketLossModel::Bursts(burst), 2));
        let mean = (0.01 * 0.5 + 0.1 * 0.01) / 0.11;
        assert!((found / mean - 1.0).abs() < 0.05, "{found} of {mean}");
    }

    #[test]
    fn one_seed_loses_the_same_packets_each_time() {
        let loss = PacketLossModel::Random(0.027);
        assert_eq!(lost(loss, 7), lost(loss, 7));
        assert_ne!(lost(loss, 7), lost(loss, 8));
    }
}
