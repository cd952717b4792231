//! Generating text with a trained decoder, byte by byte.

use crate::infer::Inference;
use crate::session::Session;
use indexmap::IndexMap;
use partita_base::{Diagnostic, Result};
use partita_ir::Literal;
use partita_mesh::Mesh;
use partita_nn::random::Draws;
use partita_runtime::checkpoint::Checkpoint;
use partita_schedule::Plan;
use std::fmt::Write;

/// How the next byte is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampler {
    /// Divides the logits: below 1 is more certain, 0 always takes the likeliest byte.
    pub temperature: f64,
    /// Only this many of the likeliest bytes are in the draw; 0 for all.
    pub top_k: usize,
    /// Seed of the draws: draw i depends on the seed and i alone.
    pub seed: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler { temperature: 0.8, top_k: 40, seed: 0 }
    }
}

impl Sampler {
    /// The `index`-th choice, among the first 256 `logits` (a byte each). E424 where none of them is a number.
    pub fn choose(&self, logits: &[f32], index: u64) -> Result<u8> {
        let mut scores: Vec<(usize, f64)> =
            logits.iter().take(256).map(|&l| f64::from(l)).enumerate().collect();
        scores.retain(|(_, score)| score.is_finite());
        // Likeliest first; of equals, the smaller byte.
        scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let Some(&(best, top)) = scores.first() else {
            return Err(Diagnostic::new("E424", "the model gives no finite score to any byte")
                .help("the run diverged: lower the learning rate or clip gradients"));
        };
        if self.temperature <= 0.0 {
            return Ok(best as u8);
        }
        if self.top_k > 0 {
            scores.truncate(self.top_k);
        }
        let weights: Vec<f64> = scores.iter().map(|(_, s)| ((s - top) / self.temperature).exp()).collect();
        let mut left = Draws::new(self.seed, "sample").unit(index) * weights.iter().sum::<f64>();
        for ((byte, _), weight) in scores.iter().zip(&weights) {
            left -= weight;
            if left < 0.0 {
                return Ok(*byte as u8);
            }
        }
        Ok(best as u8)
    }
}

/// A decoder in memory, which scores the byte after a text.
pub struct Decoder {
    inference: Inference,
    sequence: usize,
}

impl Decoder {
    /// The decoder of a session on its mesh, with a batch of one row; `None` if its model does not generate text: it has no
    /// input `tokens`, or is bidirectional.
    ///
    /// # Errors
    /// E011 if the model has no output `logits`; what building and lowering refuse.
    pub fn new(session: &Session) -> Result<Option<Decoder>> {
        Decoder::with_plan(session, None)
    }

    /// The decoder of a session on one rank of this process, without a plan.
    ///
    /// # Errors
    /// Those of [`Decoder::new`].
    pub fn alone(session: &Session) -> Result<Option<Decoder>> {
        let session = session.clone().with_mesh(Mesh::new("one", &[("dp", 1)])).in_this_process();
        Decoder::with_plan(&session, Some(Plan::default()))
    }

    fn with_plan(session: &Session, plan: Option<Plan>) -> Result<Option<Decoder>> {
        // The tokens of a model of a file need not be bytes, and its batch may be fixed.
        if session.config().model.terms().takes_any_data {
            return Ok(None);
        }
        let session = session.clone().with_batch(1);
        let model = session.model()?;
        let signature = session.signature(&model);
        let Some(tokens) = signature.input("tokens").filter(|_| !signature.is_bidirectional) else {
            return Ok(None);
        };
        let &[_, sequence] = &tokens.ty.shape[..] else { return Ok(None) };
        let plan = plan.map_or_else(|| session.plan(&model), Ok)?;
        let inference = Inference::new(&session, &model, &plan, &["tokens"])?;
        if !inference.outputs().iter().any(|name| name == "logits") {
            return Err(Diagnostic::new("E011", "the model has no output `logits` to sample from")
                .found(inference.outputs().join(", ")));
        }
        Ok(Some(Decoder { inference, sequence }))
    }

    /// Takes the parameters of a checkpoint.
    ///
    /// # Errors
    /// E314 for a checkpoint of another model.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<()> {
        self.inference.restore(checkpoint)
    }

    /// `count` bytes that follow `prompt`: see [`generate`].
    ///
    /// # Errors
    /// E424 if no logit is finite.
    pub fn generate(&mut self, sampler: &Sampler, prompt: &[u8], count: usize) -> Result<Vec<u8>> {
        let Decoder { inference, sequence } = self;
        let mut scores = |tokens: &[i32]| {
            let fed = IndexMap::from([("tokens".to_string(), window(tokens, *sequence))]);
            Ok(scores_at(&inference.run(&fed)?["logits"], tokens.len() - 1))
        };
        generate(sampler, prompt, count, *sequence, &mut scores)
    }
}

/// `count` bytes that follow `prompt`. `logits` gets the tokens so far, the last `sequence` of them at most and one at
/// least, and gives the scores of the token that follows the last one. An empty prompt is taken as a new line. Errors
/// are those of `logits` and E424.
pub fn generate(
    sampler: &Sampler,
    prompt: &[u8],
    count: usize,
    sequence: usize,
    logits: &mut dyn FnMut(&[i32]) -> Result<Vec<f32>>,
) -> Result<Vec<u8>> {
    let mut tokens: Vec<i32> = prompt.iter().map(|&byte| i32::from(byte)).collect();
    if tokens.is_empty() {
        tokens.push(i32::from(b'\n'));
    }
    let mut bytes = Vec::with_capacity(count);
    for index in 0..count as u64 {
        let start = tokens.len().saturating_sub(sequence.max(1));
        let byte = sampler.choose(&logits(&tokens[start..])?, index)?;
        tokens.push(i32::from(byte));
        bytes.push(byte);
    }
    Ok(bytes)
}

/// `tokens` as the input `[1, sequence]` of a decoder, filled up at the end, where a causal model does not look from
/// the positions before.
///
/// # Panics
/// If there are more tokens than positions.
pub fn window(tokens: &[i32], sequence: usize) -> Literal {
    assert!(tokens.len() <= sequence, "a window holds the tokens so far");
    let mut padded = tokens.to_vec();
    padded.resize(sequence, 0);
    Literal::new([1, sequence], padded)
}

/// The scores at one position of `logits[1, sequence, vocab]`.
///
/// # Panics
/// If there is no such position.
pub fn scores_at(logits: &Literal, position: usize) -> Vec<f32> {
    let (sequence, vocab) = (logits.ty.shape[1], logits.ty.shape[2]);
    assert!(position < sequence, "a position of the window");
    logits.window(&[0, position, 0], &[1, 1, vocab]).to_f64().into_iter().map(|score| score as f32).collect()
}

/// Bytes as text that is safe on a terminal: what is not UTF-8 as `\xNN`, control and direction characters as
/// `\u{..}`; new lines and tabs stay.
pub fn render(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\n' | '\t' => text.push(character),
                _ if character.is_control() || turns_direction(character) => {
                    text.extend(character.escape_unicode())
                }
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

fn turns_direction(character: char) -> bool {
    matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_k: usize) -> Sampler {
        Sampler { temperature, top_k, seed: 4 }
    }

    #[test]
    fn draws_follow_the_softmax_of_the_logits() {
        // Weights 1 : 2 : 5 at temperature 1, 1 : 4 : 25 at 1/2.
        let logits: Vec<f32> = [1f32, 2.0, 5.0].iter().map(|w| w.ln()).collect();
        for (temperature, weights) in [(1.0, [1.0, 2.0, 5.0]), (0.5, [1.0, 4.0, 25.0])] {
            let mut counts = [0.0; 3];
            for index in 0..8000 {
                counts[sampler(temperature, 0).choose(&logits, index).unwrap() as usize] += 1.0;
            }
            for (count, weight) in counts.iter().zip(weights) {
                let expected = weight / weights.iter().sum::<f64>();
                assert!((count / 8000.0 - expected).abs() < 0.017, "{counts:?}");
            }
        }
    }

    #[test]
    fn only_the_likeliest_are_drawn() {
        let logits = [0.0, 3.0, 1.0, 2.9, f32::NAN];
        let drawn: Vec<u8> = (0..200).map(|i| sampler(5.0, 2).choose(&logits, i).unwrap()).collect();
        assert!(drawn.contains(&1) && drawn.contains(&3));
        assert!(drawn.iter().all(|byte| [1, 3].contains(byte)));
        assert_eq!(sampler(0.0, 0).choose(&[1.0, 2.0, 2.0], 0).unwrap(), 1);
        assert_eq!(sampler(1.0, 0).choose(&[f32::NAN; 3], 0).unwrap_err().code, "E424");
        // What is no byte cannot be chosen, however likely.
        let mut wide = [0.0; 300];
        wide[299] = 100.0;
        assert_eq!(sampler(0.0, 0).choose(&wide, 0).unwrap(), 0);
    }

    #[test]
    fn the_context_grows_then_slides() {
        let mut seen = Vec::new();
        let mut next = |tokens: &[i32]| {
            seen.push(tokens.to_vec());
            // The byte after the last one.
            Ok((0..256).map(|b| if b == tokens[tokens.len() - 1] + 1 { 1.0 } else { 0.0 }).collect())
        };
        let bytes = generate(&sampler(0.0, 0), b"a", 4, 3, &mut next).unwrap();
        assert_eq!(bytes, b"bcde");
        assert_eq!(seen, [vec![97], vec![97, 98], vec![97, 98, 99], vec![98, 99, 100]]);
        generate(&sampler(0.0, 0), b"", 1, 3, &mut |tokens| {
            assert_eq!(tokens, [10]);
            Ok(vec![0.0; 256])
        })
        .unwrap();
    }

    #[test]
    fn windows_are_padded_and_scores_read_at_their_position() {
        assert_eq!(window(&[5, 6], 4).to_i64(), [5, 6, 0, 0]);
        let logits = Literal::new([1, 3, 2], (0..6).map(|i| i as f32).collect::<Vec<f32>>());
        assert_eq!(scores_at(&logits, 1), [2.0, 3.0]);
    }

    #[test]
    fn nothing_rendered_can_steer_a_terminal() {
        assert_eq!(render("h\u{e9}\n\tx\\".as_bytes()), "h\u{e9}\n\tx\\");
        assert_eq!(render(b"a\x1b[2Jb\xff\0\r"), "a\\u{1b}[2Jb\\xff\\u{0}\\u{d}");
        assert_eq!(render("\u{202e}x".as_bytes()), "\\u{202e}x");
        assert_eq!(render(&[0xe2, 0x82]), "\\xe2\\x82");
    }
}
