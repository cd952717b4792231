//! Windows of bytes and the byte that follows each.

use super::{Baselines, Fed, Feed};
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::Literal;
use partita_runtime::data::{Batch, Batches, BigramTable, Corpus, Split};
use std::collections::BTreeMap;

/// Feeds a decoder: `tokens` are bytes, `labels` the bytes that follow.
pub struct TextFeed {
    train: Split,
    train_batches: Batches,
    held_out: Option<Batches>,
    batch: usize,
    sequence: usize,
    has_documents: bool,
    description: String,
}

impl TextFeed {
    /// Batches of `batch` windows of `sequence` bytes. E004 unless `0 <= validation_fraction < 1`, E303 for too little
    /// text, E305 for a vocabulary of fewer than 256 tokens.
    pub fn new(
        corpus: &Corpus,
        validation_fraction: f64,
        sequence: usize,
        batch: usize,
        vocab: usize,
        seed: u64,
    ) -> Result<TextFeed> {
        enough_tokens(vocab, 256, "a byte is a token")?;
        if !(0.0..1.0).contains(&validation_fraction) {
            return Err(Diagnostic::new("E004", "`data.validation_fraction` out of range")
                .expected("at least 0 and below 1")
                .found(validation_fraction.to_string()));
        }
        let (train, rest) = corpus.split(validation_fraction, sequence)?;
        let train_batches = Batches::new(train.clone(), sequence, batch, seed)?;
        let held_out = (!rest.is_empty()).then(|| Batches::new(rest, sequence, batch, seed)).transpose()?;
        let description = corpus.describe();
        Ok(TextFeed { train, train_batches, held_out, batch, sequence, has_documents: false, description })
    }

    /// With `positions`, the position of each byte in its document; an empty line ends one.
    pub fn with_documents(mut self, has_documents: bool) -> TextFeed {
        self.has_documents = has_documents;
        self
    }

    fn fed(&self, batch: Batch) -> Fed {
        let shape = [batch.batch, batch.sequence];
        let mut positions = Vec::with_capacity(batch.tokens.len());
        for row in batch.tokens.chunks(batch.sequence) {
            let mut position = 0;
            for place in 0..row.len() {
                let starts = place >= 2 && row[place - 2..place] == [i32::from(b'\n'); 2];
                position = if starts { 0 } else { position };
                positions.push(position);
                position += 1;
            }
        }
        let mut fed = fed(batch);
        if self.has_documents {
            fed.insert("positions".to_string(), Literal::new(shape, positions));
        }
        fed
    }

    /// The training bytes of a step, before they become tensors. E307 if a file cannot be read any more.
    pub fn train_bytes(&self, step: u64) -> Result<Batch> {
        self.train_batches.batch(step)
    }

    /// The held-out bytes of a validation batch. E303 where nothing is held out.
    pub fn held_out_bytes(&self, index: u64) -> Result<Batch> {
        let held_out = self.held_out.as_ref().ok_or_else(|| {
            Diagnostic::new("E303", "no text is held out for validation")
                .help("set `data.validation_fraction` above 0")
        })?;
        held_out.batch(index)
    }

    /// Rows and tokens per row.
    pub fn shape(&self) -> [usize; 2] {
        [self.batch, self.sequence]
    }
}

/// E305 unless a vocabulary holds what is fed.
pub(super) fn enough_tokens(vocab: usize, needed: usize, why: &str) -> Result<()> {
    if vocab < needed {
        return Err(Diagnostic::new("E305", "the model's vocabulary is too small for the data")
            .at("model.vocab")
            .expected(format!("at least {needed}: {why}"))
            .found(vocab.to_string()));
    }
    Ok(())
}

fn fed(batch: Batch) -> Fed {
    let shape = [batch.batch, batch.sequence];
    IndexMap::from([
        ("tokens".to_string(), Literal::new(shape, batch.tokens)),
        ("labels".to_string(), Literal::new(shape, batch.labels)),
    ])
}

impl Feed for TextFeed {
    fn batch(&self, step: u64) -> Result<Fed> {
        Ok(self.fed(self.train_bytes(step)?))
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        Ok(self.fed(self.held_out_bytes(index)?))
    }

    fn validation_batches(&self) -> u64 {
        let whole = |held_out: &Batches| (held_out.windows_per_epoch() / self.batch as u64).max(1);
        self.held_out.as_ref().map_or(0, whole)
    }

    fn tokens_per_batch(&self) -> usize {
        self.batch * self.sequence
    }

    fn describe(&self) -> String {
        self.description.clone()
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        self.train_batches.position(steps)
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        self.train_batches.resume(position)
    }

    /// Counts on the training text; predicts the bytes of the validation batches, so that the losses can
    /// be compared with the model's.
    fn baselines(&self, batches: u64) -> Option<Baselines> {
        let held_out = self.held_out.as_ref()?;
        let mut table = BigramTable::default();
        // What cannot be read has an error where it is trained on.
        self.train.visit(&mut |piece| table.count(piece)).ok()?;
        let (mut unigram, mut bigram, mut rows) = (0.0, 0.0, 0.0);
        for index in 0..batches.min(self.validation_batches()).max(1) {
            let batch = held_out.batch(index).ok()?;
            for (tokens, labels) in batch.tokens.chunks(self.sequence).zip(batch.labels.chunks(self.sequence))
            {
                let row = || tokens.iter().chain(labels.last()).map(|&token| token as u8);
                unigram += table.unigram_nats(row());
                bigram += table.bigram_nats(row());
                rows += 1.0;
            }
        }
        Some(Baselines { unigram_nats: unigram / rows, bigram_nats: bigram / rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(fraction: f64, vocab: usize) -> Result<TextFeed> {
        let text = b"the quick brown fox jumps over the lazy dog. ".repeat(40);
        TextFeed::new(&Corpus::from_bytes("memory", text), fraction, 16, 4, vocab, 7)
    }

    #[test]
    fn labels_are_the_tokens_moved_by_one() {
        let feed = feed(0.1, 256).unwrap();
        for fed in [feed.batch(3).unwrap(), feed.validation(1).unwrap()] {
            let (tokens, labels) = (fed["tokens"].to_f64(), fed["labels"].to_f64());
            assert_eq!(fed["tokens"].ty.shape, [4, 16]);
            for row in 0..4 {
                assert_eq!(tokens[row * 16 + 1..(row + 1) * 16], labels[row * 16..(row + 1) * 16 - 1]);
            }
        }
        assert_eq!(feed.batch(3).unwrap(), self::feed(0.1, 256).unwrap().batch(3).unwrap());
        assert_ne!(feed.batch(3).unwrap(), feed.batch(4).unwrap());
        assert_eq!(feed.tokens_per_batch(), 64);
        assert_eq!(feed.resume(&feed.position(9)).unwrap(), 9);
    }

    #[test]
    fn an_empty_line_ends_a_document() {
        let text = b"ab\n\nc\nd\n\n\n".repeat(200);
        let feed = TextFeed::new(&Corpus::from_bytes("memory", text), 0.0, 20, 2, 256, 7).unwrap();
        let fed = feed.with_documents(true).batch(0).unwrap();
        let (tokens, positions) = (fed["tokens"].to_i64(), fed["positions"].to_i64());
        for (tokens, positions) in tokens.chunks(20).zip(positions.chunks(20)) {
            assert_eq!(positions[0], 0);
            for place in 1..20 {
                let ends = place > 1 && tokens[place - 2..place] == [10, 10];
                assert_eq!(positions[place], if ends { 0 } else { positions[place - 1] + 1 });
            }
            assert!(positions[1..].contains(&0));
        }
    }

    #[test]
    fn counting_pairs_beats_counting_bytes_on_repeated_text() {
        let baselines = feed(0.1, 256).unwrap().baselines(2).unwrap();
        assert!(baselines.bigram_nats < 0.6 * baselines.unigram_nats, "{baselines:?}");
        // English letters and a space carry about 2.9 nats, whatever the windows.
        assert!((2.5..3.2).contains(&baselines.unigram_nats), "{baselines:?}");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert_eq!(feed(0.1, 255).err().unwrap().code, "E305");
        assert_eq!(feed(1.0, 256).err().unwrap().code, "E004");
        let nothing_held_out = feed(0.0, 256).unwrap();
        assert_eq!(nothing_held_out.validation_batches(), 0);
        assert_eq!(nothing_held_out.validation(0).unwrap_err().code, "E303");
        assert_eq!(nothing_held_out.baselines(1), None);
    }
}
