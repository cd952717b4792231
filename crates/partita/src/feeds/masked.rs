//! Bytes, some of them hidden, to be told from the bytes around them.

use super::text::enough_tokens;
use super::{Baselines, Fed, Feed, IGNORED, TextFeed};
use indexmap::IndexMap;
use partita_base::Result;
use partita_ir::Literal;
use partita_nn::random::Draws;
use partita_runtime::data::Batch;
use std::collections::BTreeMap;

/// The token in place of a hidden byte.
pub const MASK: i32 = 256;

/// Share of the positions that are predicted.
const CHOSEN: f64 = 0.15;
/// Of those, the share shown as the mask id 256, and the share shown as a random byte; the rest is shown as it is.
const MASKED: f64 = 0.8;
const REPLACED: f64 = 0.1;

/// Feeds an encoder, after Devlin et al., "BERT" (2018), 3.1: 15 % of the positions are chosen; of those 80 % show
/// the mask id 256, 10 % a random byte, 10 % the byte itself. `labels` are the original bytes there, [`IGNORED`] elsewhere.
///
/// The choice at a position is a function of the seed and the position's number in the run, so it is another one in
/// every epoch.
pub struct MaskedTextFeed {
    text: TextFeed,
    types: usize,
    padding_mask: bool,
    seed: u64,
}

impl MaskedTextFeed {
    /// Masks what `text` gives. With `types` > 0 there are `token_types` (the second half of a window is of type 1),
    /// with `padding_mask` an `attention_mask` (all ones: windows are full). E305 for fewer than 257 tokens.
    pub fn new(
        text: TextFeed,
        vocab: usize,
        types: usize,
        padding_mask: bool,
        seed: u64,
    ) -> Result<MaskedTextFeed> {
        enough_tokens(vocab, MASK as usize + 1, "256 bytes and the mask")?;
        Ok(MaskedTextFeed { text, types, padding_mask, seed })
    }

    fn mask(&self, bytes: Batch, stream: &str, index: u64) -> Fed {
        let shape = [bytes.batch, bytes.sequence];
        let first = index * bytes.tokens.len() as u64;
        let draws = Draws::new(self.seed, stream);
        let (chosen, shown, replacement) = (draws.within(0), draws.within(1), draws.within(2));
        let mut tokens = bytes.tokens;
        let mut labels = vec![IGNORED; tokens.len()];
        for (offset, (token, label)) in tokens.iter_mut().zip(&mut labels).enumerate() {
            let position = first + offset as u64;
            if chosen.unit(position) >= CHOSEN {
                continue;
            }
            *label = *token;
            let how = shown.unit(position);
            if how < MASKED {
                *token = MASK;
            } else if how < MASKED + REPLACED {
                *token = replacement.below(position, 256) as i32;
            }
        }
        let mut fed = IndexMap::from([
            ("tokens".to_string(), Literal::new(shape, tokens)),
            ("labels".to_string(), Literal::new(shape, labels)),
        ]);
        let count = shape[0] * shape[1];
        if self.types > 0 {
            let second = i32::from(self.types > 1);
            let types = (0..count).map(|i| if i % shape[1] < shape[1].div_ceil(2) { 0 } else { second });
            fed.insert("token_types".to_string(), Literal::new(shape, types.collect::<Vec<i32>>()));
        }
        if self.padding_mask {
            fed.insert("attention_mask".to_string(), Literal::new(shape, vec![1i32; count]));
        }
        fed
    }
}

impl Feed for MaskedTextFeed {
    fn batch(&self, step: u64) -> Result<Fed> {
        Ok(self.mask(self.text.train_bytes(step)?, "mask", step))
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        Ok(self.mask(self.text.held_out_bytes(index)?, "mask.validation", index))
    }

    fn validation_batches(&self) -> u64 {
        self.text.validation_batches()
    }

    fn tokens_per_batch(&self) -> usize {
        self.text.tokens_per_batch()
    }

    fn describe(&self) -> String {
        format!("{}; 15% of the bytes are predicted", self.text.describe())
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        self.text.position(steps)
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        self.text.resume(position)
    }

    /// Of all bytes of the windows, not of the hidden ones alone: what a model has to beat by using both sides.
    fn baselines(&self, batches: u64) -> Option<Baselines> {
        self.text.baselines(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_runtime::data::Corpus;

    fn feed(batch: usize) -> MaskedTextFeed {
        // 200 bytes that never occur in the text stay recognisable as replacements.
        let corpus = Corpus::from_bytes("counting", (0..60_000u32).map(|i| (i % 56) as u8).collect());
        let text = TextFeed::new(&corpus, 0.1, 50, batch, 257, 3).unwrap();
        MaskedTextFeed::new(text, 257, 2, true, 3).unwrap()
    }

    fn values(fed: &Fed, name: &str) -> Vec<i64> {
        fed[name].to_i64()
    }

    #[test]
    fn positions_are_hidden_in_the_published_proportions() {
        let feed = feed(200);
        let (mut positions, mut chosen, mut masked, mut replaced) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        for step in 0..5 {
            let original: Vec<i64> =
                feed.text.train_bytes(step).unwrap().tokens.into_iter().map(i64::from).collect();
            let fed = feed.batch(step).unwrap();
            let (tokens, labels) = (values(&fed, "tokens"), values(&fed, "labels"));
            for ((&was, &token), &label) in original.iter().zip(&tokens).zip(&labels) {
                positions += 1.0;
                if label == -100 {
                    assert_eq!(token, was);
                    continue;
                }
                assert_eq!(label, was);
                chosen += 1.0;
                masked += f64::from(u8::from(token == 256));
                replaced += f64::from(u8::from(token != 256 && token != was));
            }
        }
        // 50,000 positions, 7,500 chosen: three standard deviations.
        assert!((chosen / positions - 0.15).abs() < 0.005, "{}", chosen / positions);
        assert!((masked / chosen - 0.8).abs() < 0.014, "{}", masked / chosen);
        assert!((replaced / chosen - 0.1).abs() < 0.011, "{}", replaced / chosen);
    }

    #[test]
    fn masks_depend_on_the_seed_and_the_step_alone() {
        assert_eq!(feed(4).batch(11).unwrap(), feed(4).batch(11).unwrap());
        let hidden = |step| -> Vec<bool> {
            values(&feed(4).batch(step).unwrap(), "labels").iter().map(|&l| l != -100).collect()
        };
        assert_ne!(hidden(0), hidden(1));
        // Batches of two are the halves of a batch of four.
        let halves: Vec<i64> =
            [2, 3].iter().flat_map(|&s| values(&feed(2).batch(s).unwrap(), "tokens")).collect();
        assert_eq!(values(&feed(4).batch(1).unwrap(), "tokens"), halves);
    }

    #[test]
    fn the_other_inputs_are_there() {
        let fed = feed(2).validation(0).unwrap();
        assert_eq!(values(&fed, "attention_mask"), [1; 100]);
        let types = values(&fed, "token_types");
        assert_eq!((types[..25].iter().sum::<i64>(), types[25..50].iter().sum::<i64>()), (0, 25));
    }

    #[test]
    fn a_vocabulary_without_the_mask_is_refused() {
        let corpus = Corpus::from_bytes("ones", vec![1; 1000]);
        let text = TextFeed::new(&corpus, 0.1, 8, 2, 256, 0).unwrap();
        assert_eq!(MaskedTextFeed::new(text, 256, 0, false, 0).err().unwrap().code, "E305");
    }
}
