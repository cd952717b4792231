//! Baselines from counting: losses that a trained model must beat.

/// Counts of bytes and of pairs of bytes.
#[derive(Clone, Debug)]
pub struct BigramTable {
    /// `single[b]`: how often byte b occurs as the second of a pair.
    single: Vec<u64>,
    /// `pair[a * 256 + b]`: how often b follows a.
    pair: Vec<u64>,
    /// The last byte that was counted.
    last: Option<u8>,
}

impl Default for BigramTable {
    fn default() -> BigramTable {
        BigramTable { single: vec![0; 256], pair: vec![0; 256 * 256], last: None }
    }
}

/// Added to every count, so that unseen pairs keep a nonzero probability.
const SMOOTHING: f64 = 0.1;

impl BigramTable {
    /// Counts the next bytes of a training text.
    pub fn count(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(before) = self.last.replace(byte) {
                self.single[usize::from(byte)] += 1;
                self.pair[usize::from(before) * 256 + usize::from(byte)] += 1;
            }
        }
    }

    /// Mean -ln p(byte), in nats, over every byte of `text` but the first. 0 for fewer than two bytes.
    pub fn unigram_nats(&self, text: impl IntoIterator<Item = u8>) -> f64 {
        let total: u64 = self.single.iter().sum();
        mean_nats(text, |_, b| smoothed(self.single[b], total))
    }

    /// Mean -ln p(byte | the byte before), in nats, over every byte of `text` but the first. 0 for fewer than
    /// two bytes.
    pub fn bigram_nats(&self, text: impl IntoIterator<Item = u8>) -> f64 {
        let totals: Vec<u64> = self.pair.chunks(256).map(|row| row.iter().sum()).collect();
        mean_nats(text, |a, b| smoothed(self.pair[a * 256 + b], totals[a]))
    }
}

/// The probability of one of 256 outcomes seen `count` times in `total`.
fn smoothed(count: u64, total: u64) -> f64 {
    (count as f64 + SMOOTHING) / (total as f64 + 256.0 * SMOOTHING)
}

fn mean_nats(text: impl IntoIterator<Item = u8>, probability: impl Fn(usize, usize) -> f64) -> f64 {
    let (mut sum, mut count) = (0.0, 0u64);
    for_each_pair(text, |a, b| {
        sum -= probability(a, b).ln();
        count += 1;
    });
    if count == 0 { 0.0 } else { sum / count as f64 }
}

fn for_each_pair(text: impl IntoIterator<Item = u8>, mut visit: impl FnMut(usize, usize)) {
    let mut bytes = text.into_iter();
    let Some(first) = bytes.next() else { return };
    bytes.fold(usize::from(first), |before, byte| {
        visit(before, usize::from(byte));
        usize::from(byte)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &[u8]) -> BigramTable {
        let mut table = BigramTable::default();
        text.chunks(3).for_each(|piece| table.count(piece));
        table
    }

    #[test]
    fn a_tiny_text_gives_the_numbers_done_by_hand() {
        // Pairs of "abab": ab, ba, ab. Of "aba": ab, ba.
        let table = counted(b"abab");
        let total = 256.0 * 0.1;
        let bigram = -((2.1f64 / (2.0 + total)).ln() + (1.1f64 / (1.0 + total)).ln()) / 2.0;
        assert!((table.bigram_nats(*b"aba") - bigram).abs() < 1e-12);
        // Second bytes: b, a, b.
        let unigram = -((2.1f64 / (3.0 + total)).ln() + (1.1f64 / (3.0 + total)).ln()) / 2.0;
        assert!((table.unigram_nats(*b"aba") - unigram).abs() < 1e-12);
        assert_eq!(table.bigram_nats(*b"a"), 0.0);
    }

    #[test]
    fn untrained_counts_know_nothing_and_order_helps_where_there_is_order() {
        let none = counted(b"");
        assert!((none.bigram_nats(*b"anything") - 256f64.ln()).abs() < 1e-12);
        let text: Vec<u8> = b"the quick brown fox ".repeat(50);
        let table = counted(&text);
        assert!(table.bigram_nats(text.iter().copied()) < 0.7 * table.unigram_nats(text.iter().copied()));
    }
}
