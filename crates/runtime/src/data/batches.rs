//! Selects the bytes of each step.

use std::collections::BTreeMap;

use partita_base::{Diagnostic, Result};

use super::{Split, is_of_samples};

/// The batches of a run. Window w covers bytes `[w * S, w * S + S]` of the split, so every byte but
/// the first is predicted once per epoch. Each epoch visits all windows in another order, and
/// batches continue across the end of an epoch.
#[derive(Clone, Debug)]
pub struct Batches {
    split: Split,
    sequence_length: usize,
    batch_size: usize,
    seed: u64,
    windows: u64,
}

/// One step's tokens and the token that follows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Values 0 to 255, row-major `[batch, sequence]`.
    pub tokens: Vec<i32>,
    /// The next byte of each token, `[batch, sequence]`.
    pub labels: Vec<i32>,
    /// Rows.
    pub batch: usize,
    /// Tokens in a row.
    pub sequence: usize,
}

impl Batches {
    /// Batches of `batch_size` sequences drawn from `split` in an order set by `seed`.
    ///
    /// # Errors
    /// E303 if the split has no window of `sequence_length + 1` bytes, or a size is zero.
    pub fn new(split: Split, sequence_length: usize, batch_size: usize, seed: u64) -> Result<Batches> {
        if sequence_length == 0 || batch_size == 0 {
            return Err(Diagnostic::new("E303", "a batch needs at least one sequence of at least one byte")
                .found(format!("batch size {batch_size}, sequence length {sequence_length}")));
        }
        let windows = split.len().saturating_sub(1) / sequence_length as u64;
        if windows == 0 {
            return Err(Diagnostic::new(
                "E303",
                format!("too little text for sequences of {sequence_length} bytes"),
            )
            .expected(format!("{} bytes or more", sequence_length + 1))
            .found(format!("{} bytes", split.len()))
            .help("use shorter sequences or more text"));
        }
        Ok(Batches { split, sequence_length, batch_size, seed, windows })
    }

    /// Sequences in one pass over the text.
    pub fn windows_per_epoch(&self) -> u64 {
        self.windows
    }

    /// The batch of step `step` (from 0): samples `step * batch_size` and on. A pure function of the step.
    pub fn batch(&self, step: u64) -> Batch {
        let (batch, sequence) = (self.batch_size, self.sequence_length);
        let mut tokens = Vec::with_capacity(batch * sequence);
        let mut labels = Vec::with_capacity(batch * sequence);
        let mut window = vec![0; sequence + 1];
        for row in 0..batch as u64 {
            let start = self.window(step * batch as u64 + row) * sequence as u64;
            self.split.read(start, &mut window);
            tokens.extend(window[..sequence].iter().map(|&b| i32::from(b)));
            labels.extend(window[1..].iter().map(|&b| i32::from(b)));
        }
        Batch { tokens, labels, batch, sequence }
    }

    /// The window of sample `sample`, counted from the start of the run.
    fn window(&self, sample: u64) -> u64 {
        let (epoch, place) = (sample / self.windows, sample % self.windows);
        Permutation::new(self.windows, self.seed, epoch).at(place)
    }

    /// The data position after `steps` steps, as written into checkpoints. `data.corpus` is the
    /// readable name of the text; [`Batches::resume`] compares `data.digest`.
    pub fn position(&self, steps: u64) -> BTreeMap<String, String> {
        let range = self.split.range();
        [
            ("data.samples", (steps * self.batch_size as u64).to_string()),
            ("data.seed", self.seed.to_string()),
            ("data.sequence_length", self.sequence_length.to_string()),
            ("data.corpus", self.split.corpus_name().to_string()),
            ("data.digest", self.split.corpus_digest().to_string()),
            ("data.range", format!("{}..{}", range.start, range.end)),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_string(), value))
        .collect()
    }

    /// The next step after a [`Batches::position`]; the batch size may have changed.
    ///
    /// # Errors
    /// E304 if the text, its training part, the seed or the sequence length differs, or the samples
    /// so far do not fill whole batches.
    pub fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        let saved = |key: &str| position.get(key).map_or("nothing", String::as_str);
        let refused = |what: &str, expected: String, found: String| {
            Diagnostic::new("E304", format!("the checkpoint was made with another {what}"))
                .expected(expected)
                .found(found)
                .help("resume with the same data, seed and sequence length, or start a new run from the weights")
        };
        let mut now = self.position(0);
        if is_of_samples(saved("data.digest")) && !is_of_samples(&now["data.digest"]) {
            // An earlier version read no more.
            now.insert("data.digest".to_string(), self.split.digest_of_samples());
        }
        if saved("data.digest") != now["data.digest"] {
            let text = |name: &str, digest: &str| format!("{name}, {digest}");
            return Err(refused(
                "text",
                text(saved("data.corpus"), saved("data.digest")),
                text(&now["data.corpus"], &now["data.digest"]),
            ));
        }
        for key in ["data.range", "data.seed", "data.sequence_length"] {
            if saved(key) != now[key] {
                return Err(refused(key, saved(key).to_string(), now[key].clone()));
            }
        }
        let batch = self.batch_size as u64;
        match saved("data.samples").parse::<u64>() {
            Ok(samples) if samples % batch == 0 => Ok(samples / batch),
            _ => Err(Diagnostic::new("E304", "the data position does not fall on the start of a batch")
                .expected(format!("a multiple of the batch size {batch}"))
                .found(format!("{} sequences seen so far", saved("data.samples")))
                .help("resume with a batch size that divides it")),
        }
    }
}

/// A shuffle of `0..length` that is computed, not stored: a Feistel network over the next even
/// number of bits, repeated until the result is in range (cycle walking). Source: Black and
/// Rogaway, "Ciphers with Arbitrary Finite Domains".
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    length: u64,
    half_bits: u32,
    keys: [u64; 6],
}

impl Permutation {
    /// The shuffle of `0..length` for this seed and epoch.
    pub fn new(length: u64, seed: u64, epoch: u64) -> Permutation {
        let bits = u64::BITS - length.saturating_sub(1).leading_zeros();
        let mut state = mix(seed) ^ mix(epoch.wrapping_add(0x5851_f42d_4c95_7f2d));
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Permutation { length, half_bits: bits.div_ceil(2).max(1), keys }
    }

    /// The image of `index`.
    ///
    /// # Panics
    /// If `index` is not below the length.
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.length, "an index lies in the range that is shuffled");
        // The range is at least a quarter of the wider one, so this takes four rounds on average at worst.
        let mut value = index;
        loop {
            value = self.feistel(value);
            if value < self.length {
                return value;
            }
        }
    }

    fn feistel(&self, value: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit reaches every output bit.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Corpus;
    use super::*;

    /// Bytes whose value equals their position.
    fn counting(length: u64) -> Split {
        Corpus::from_bytes("counting", (0..length).map(|i| i as u8).collect()).whole()
    }

    #[test]
    fn a_permutation_visits_everything_once() {
        for length in (1..70).chain([255, 256, 257, 1000, 4097]) {
            let permutation = Permutation::new(length, 7, length);
            let image: BTreeSet<u64> = (0..length).map(|i| permutation.at(i)).collect();
            assert_eq!(image, (0..length).collect());
        }
        let huge = Permutation::new(u64::MAX / 2, 1, 2);
        assert!(huge.at(u64::MAX / 2 - 1) < u64::MAX / 2);
    }

    #[test]
    fn epochs_and_seeds_shuffle_differently_and_well() {
        let order = |seed, epoch| -> Vec<u64> {
            let p = Permutation::new(1000, seed, epoch);
            (0..1000).map(|i| p.at(i)).collect()
        };
        let base = order(1, 0);
        for other in [order(1, 1), order(2, 0)] {
            // Two independent shuffles agree in one position on average (Poisson: over 8 has a
            // chance of 1e-6).
            assert!(base.iter().zip(&other).filter(|(a, b)| a == b).count() <= 8);
        }
        // Neighbours stay neighbours in about 2 of 1000 positions.
        assert!(base.windows(2).filter(|w| w[0].abs_diff(w[1]) == 1).count() <= 12);
    }

    #[test]
    fn an_epoch_predicts_every_byte_once_in_whole_windows() {
        let batches = Batches::new(counting(241), 8, 5, 3).unwrap();
        assert_eq!(batches.windows_per_epoch(), 30);
        for epoch in 0..3 {
            let mut predicted = Vec::new();
            for step in epoch * 6..(epoch + 1) * 6 {
                let batch = batches.batch(step);
                assert_eq!((batch.batch, batch.sequence, batch.tokens.len()), (5, 8, 40));
                for (t, l) in batch.tokens.iter().zip(&batch.labels) {
                    assert_eq!(t + 1, *l);
                }
                predicted.extend(batch.labels);
            }
            predicted.sort();
            assert_eq!(predicted, (1..=240).collect::<Vec<i32>>());
        }
        assert_ne!(batches.batch(0), batches.batch(6));
    }

    #[test]
    fn a_step_does_not_depend_on_how_samples_are_grouped_or_on_what_came_before() {
        let (large, small) =
            (Batches::new(counting(500), 7, 8, 1).unwrap(), Batches::new(counting(500), 7, 4, 1).unwrap());
        let far = large.batch(1_000_003);
        for step in 0..20 {
            let halves = [small.batch(2 * step).tokens, small.batch(2 * step + 1).tokens].concat();
            assert_eq!(large.batch(step).tokens, halves);
        }
        assert_eq!(large.clone().batch(1_000_003), far);
    }

    #[test]
    fn training_never_sees_what_is_held_out() {
        let corpus = Corpus::from_bytes("counting", (0..200).collect());
        let (train, validation) = corpus.split(0.1, 6).unwrap();
        let seen = |split: Split| -> BTreeSet<i32> {
            let batches = Batches::new(split, 6, 2, 9).unwrap();
            (0..200).flat_map(|s| [batches.batch(s).tokens, batches.batch(s).labels].concat()).collect()
        };
        let (train, validation) = (seen(train), seen(validation));
        assert!(train.is_disjoint(&validation));
        assert_eq!((train.len(), validation.len()), (175, 19));
    }

    #[test]
    fn a_position_resumes_on_the_same_data_only() {
        let batches = |length, seed, batch| Batches::new(counting(length), 10, batch, seed).unwrap();
        let position = batches(300, 5, 4).position(6);
        assert_eq!(batches(300, 5, 4).resume(&position).unwrap(), 6);
        assert_eq!(batches(300, 5, 8).resume(&position).unwrap(), 3);
        for other in [batches(300, 5, 5), batches(301, 5, 4), batches(300, 6, 4)] {
            assert_eq!(other.resume(&position).unwrap_err().code, "E304");
        }
        assert_eq!(batches(300, 5, 4).resume(&BTreeMap::new()).unwrap_err().code, "E304");
    }

    #[test]
    fn a_position_names_the_text_and_compares_its_digest() {
        let batches = |name: &str, text: &[u8], fraction| {
            let corpus = Corpus::from_bytes(name, text.to_vec());
            Batches::new(corpus.split(fraction, 4).unwrap().0, 4, 2, 1).unwrap()
        };
        let text = b"the quick brown fox jumps over the lazy dog";
        let position = batches("first", text, 0.2).position(3);
        assert_eq!(position["data.corpus"], "first");
        assert_eq!(position["data.range"], "0..35");

        // The same text under another name is the same text.
        assert_eq!(batches("moved", text, 0.2).resume(&position).unwrap(), 3);

        // One byte, anywhere: here in the validation part.
        let mut changed = text.to_vec();
        *changed.last_mut().unwrap() = b'G';
        let error = batches("second", &changed, 0.2).resume(&position).unwrap_err();
        assert_eq!(
            (error.code, error.message.as_str()),
            ("E304", "the checkpoint was made with another text")
        );
        assert!(error.expected.as_ref().unwrap().starts_with("first, sha256:"), "{error}");
        assert!(error.found.as_ref().unwrap().starts_with("second, sha256:"), "{error}");

        // A checkpoint of an earlier version, which knows a long text by samples.
        let mut earlier = position.clone();
        let samples = batches("first", text, 0.2).split.digest_of_samples();
        assert!(is_of_samples(&samples));
        earlier.insert("data.digest".to_string(), samples);
        assert_eq!(batches("first", text, 0.2).resume(&earlier).unwrap(), 3);
        assert_eq!(batches("second", &changed, 0.2).resume(&earlier).unwrap_err().code, "E304");

        let error = batches("first", text, 0.3).resume(&position).unwrap_err();
        assert_eq!(error.message, "the checkpoint was made with another data.range");
        assert_eq!((error.expected.as_deref(), error.found.as_deref()), (Some("0..35"), Some("0..31")));
    }

    #[test]
    fn too_little_text_is_refused_with_the_numbers() {
        assert!(Batches::new(counting(11), 10, 4, 0).is_ok());
        let error = Batches::new(counting(10), 10, 4, 0).unwrap_err();
        assert_eq!((error.code, error.expected.as_deref()), ("E303", Some("11 bytes or more")));
        assert_eq!(Batches::new(counting(10), 3, 0, 0).unwrap_err().code, "E303");
    }
}
