//! Batches from a file of tensors: one tensor for each input of the model, whose rows are the samples.

use super::{Fed, Feed};
use crate::signature::{Input, Signature};
use indexmap::IndexMap;
use partita_base::{Diagnostic, ReadFile, Result, did_you_mean};
use partita_import::{Limits, Source, Tensor, Weights};
use partita_ir::port::name_by_user;
use partita_ir::{Literal, TensorType};
use partita_runtime::data::{DATA, Permutation, file_identity};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Whether a path has the ending of a file of tensors.
pub fn is_tensors(path: &Path) -> bool {
    path.extension()
        .and_then(|ending| ending.to_str())
        .is_some_and(|ending| matches!(ending, "npz" | "npy" | "safetensors"))
}

/// Feeds the rows of a file in their order, again and again, or shuffled in each epoch. The last ones may be held out,
/// and are never shuffled. An input without the rows of a batch is fed the same tensor in every step.
pub struct TensorFeed {
    name: String,
    /// The digest of the file.
    digest: String,
    inputs: Vec<Input>,
    /// Their rows are read where they are used. In memory is what the file has compressed, in another order, or for all rows
    /// alike.
    tensors: IndexMap<String, Tensor>,
    batch: usize,
    /// Rows to train on, and rows held out after them.
    rows: [usize; 2],
    /// Whether `positions` are those of the documents whose ids the file has.
    has_ids: bool,
    /// The seed of the shuffles.
    shuffle: Option<u64>,
}

impl TensorFeed {
    /// Opens a file: `.safetensors` or `.npz` with a tensor for each input, or a `.npy` file for a model with one input.
    /// `documents`, the ids of the documents of packed tokens, replaces `positions`. Other tensors are ignored.
    /// Numbers are converted to the type of the input.
    ///
    /// # Errors
    /// E350 to E361 for a file that cannot be read, E306 for tensors that do not fit the inputs, E303 for fewer rows than a
    /// batch, E307 if the file changes meanwhile.
    pub fn open(path: &Path, held_out: f64, signature: &Signature, batch: usize) -> Result<TensorFeed> {
        let file = ReadFile::open(path, &DATA, true).map_err(|error| unreadable(path, &error))?;
        let file = Arc::new(file);
        let weights = Weights::of_file(path, Source::from(file.clone()), &Limits::default())?;
        let located = |mut error: Box<Diagnostic>| {
            error.at = Some(path.display().to_string());
            error
        };
        let digest = file_identity(&file)?;
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let is_array = path.extension().is_some_and(|ending| ending == "npy");
        let mut tensors = IndexMap::new();
        for input in &signature.inputs {
            let only = weights.iter().next().filter(|_| is_array && signature.inputs.len() == 1);
            // Positions follow from the ids of documents.
            let ids = weights.get(DOCUMENTS).filter(|_| input.name == POSITIONS);
            let by_user = name_by_user(&input.name).and_then(|name| weights.get(&name));
            let tensor = weights.get(&input.name).or(by_user).or(ids).or(only.map(|(_, tensor)| tensor));
            let tensor = tensor.ok_or_else(|| located(missing(&input.name, &weights)))?;
            // Complex inputs of a program are pairs of real numbers.
            let pairs = tensor.as_pairs();
            let is_pairs = pairs.ty.rank() == input.ty.rank();
            tensors.insert(input.name.clone(), if is_pairs { pairs } else { tensor.clone() });
        }
        let mut rows: Option<(&str, usize)> = None;
        for input in &signature.inputs {
            let (name, found) = (input.name.as_str(), &tensors[&input.name].ty);
            let is_batched = has_rows(input, batch);
            let (own, others) = if is_batched {
                (&input.ty.shape[1..], found.shape.get(1..))
            } else {
                (&input.ty.shape[..], Some(&found.shape[..]))
            };
            if others != Some(own) {
                let rows = if is_batched { " with any number of rows" } else { "" };
                return Err(located(unfit(name, format!("{}{rows}", input.ty), found.to_string())));
            }
            let count = is_batched.then(|| found.shape[0]);
            match (count, rows) {
                (Some(count), None) => rows = Some((name, count)),
                (Some(count), Some((first, expected))) if count != expected => {
                    return Err(located(unfit(
                        name,
                        format!("{expected} rows, as `{first}` has"),
                        format!("{count} rows"),
                    )));
                }
                _ => {}
            }
        }
        let has_ids = tensors.contains_key(POSITIONS) && weights.get(POSITIONS).is_none();
        let all = rows.map_or(batch, |(_, rows)| rows);
        let held = (all as f64 * held_out.clamp(0.0, 1.0)) as usize;
        let held = if held >= batch && all - held >= batch { held } else { 0 };
        if all < batch {
            return Err(located(
                Diagnostic::new("E303", "the data has fewer rows than a batch")
                    .expected(format!("at least {batch} rows"))
                    .found(format!("{all} rows"))
                    .help("use a smaller --batch, if the model permits it"),
            ));
        }
        let tensors = signature.inputs.iter().map(|input| {
            let tensor = &tensors[&input.name];
            let is_read_by_rows = has_rows(input, batch) && tensor.is_dense();
            let held = if is_read_by_rows { tensor.clone() } else { tensor.loaded()? };
            Ok((input.name.clone(), held))
        });
        Ok(TensorFeed {
            tensors: tensors.collect::<Result<_>>()?,
            name,
            digest,
            inputs: signature.inputs.clone(),
            batch,
            rows: [all - held, held],
            has_ids,
            shuffle: None,
        })
    }

    /// Shuffles the rows to train on in each epoch, by this seed; in the order of the file without one.
    pub fn shuffled(mut self, seed: Option<u64>) -> TensorFeed {
        self.shuffle = seed;
        self
    }

    /// A batch of rows of the file.
    fn rows(&self, rows: &[usize]) -> Result<Fed> {
        let located = |result: Result<Literal>| result.map_err(|error| error.at(self.name.clone()));
        let value = |input: &Input| {
            let tensor = &self.tensors[&input.name];
            let is_batched = has_rows(input, self.batch);
            let value = match is_batched {
                false => tensor.literal()?,
                true => {
                    let (ty, row) =
                        (input.ty.with_dtype(tensor.ty.dtype), tensor.ty.bytes() / tensor.ty.shape[0].max(1));
                    Literal::written(&ty, |mut rest| {
                        for run in rows.chunk_by(|a, b| a + 1 == *b) {
                            let (into, after) = rest.split_at_mut(run.len() * row);
                            tensor.rows(run[0], run.len()).read(into)?;
                            rest = after;
                        }
                        Ok::<(), Box<Diagnostic>>(())
                    })?
                }
            };
            let is_of_ids = is_batched && self.has_ids && input.name == POSITIONS;
            let value = if is_of_ids { positions(&value, input) } else { converted(&value, input) };
            let numbers = if is_batched { rows } else { &[] };
            let value = value.and_then(|value| check_indices(value, input, numbers));
            Ok((input.name.clone(), located(value)?))
        };
        self.inputs.iter().map(value).collect()
    }
}

/// The input with the position of each token in its document, and the tensor of a file with the ids of documents.
const POSITIONS: &str = "positions";
const DOCUMENTS: &str = "documents";

/// The position of each token in its document, from their ids: a token with another id than the one before starts one.
fn positions(ids: &Literal, input: &Input) -> Result<Literal> {
    if ids.ty.dtype.is_float() {
        return Err(unfit(DOCUMENTS, input.ty.to_string(), ids.ty.to_string()));
    }
    let (ids, row) = (ids.to_i128(), input.ty.shape.last().copied().unwrap_or(1).max(1));
    let mut position = 0;
    let positions = (0..ids.len()).map(|at| {
        position = if at % row == 0 || ids[at] != ids[at - 1] { 0 } else { position + 1 };
        position
    });
    Ok(Literal::from_i128(&input.ty, positions.collect::<Vec<_>>().into_iter()))
}

/// Whether dimension 0 of an input is the batch.
fn has_rows(input: &Input, batch: usize) -> bool {
    input.ty.shape.first() == Some(&batch)
}

/// E350: the file cannot be opened.
fn unreadable(path: &Path, error: &std::io::Error) -> Box<Diagnostic> {
    Diagnostic::new("E350", format!("cannot read {}", path.display()))
        .expected("a readable file")
        .found(error.to_string())
}

/// E306: the file lacks an input.
fn missing(input: &str, weights: &Weights) -> Box<Diagnostic> {
    let names: Vec<&str> = weights.iter().map(|(name, _)| name).collect();
    let mut error = Diagnostic::new("E306", format!("the data has nothing for the input `{input}`"))
        .expected(format!("a tensor named `{input}`"))
        .found(if names.is_empty() { "no tensors".to_string() } else { names.join(", ") });
    error.help = did_you_mean(input, names);
    error
}

/// E306: a tensor does not fit its input.
fn unfit(input: &str, expected: String, found: String) -> Box<Diagnostic> {
    Diagnostic::new("E306", format!("the data does not fit the input `{input}`"))
        .expected(expected)
        .found(found)
}

/// The numbers as the type of the input. E306 for an integer that it does not have, floats for an integer
/// input, or complex numbers for real ones.
pub(crate) fn converted(value: &Literal, input: &Input) -> Result<Literal> {
    let (from, to) = (value.ty.dtype, input.ty.dtype);
    if from == to {
        return Ok(value.clone());
    }
    let ty: TensorType = value.ty.with_dtype(to);
    if from.is_complex() && !to.is_complex() {
        return Err(unfit(&input.name, input.ty.to_string(), value.ty.to_string()));
    }
    if to.is_float() {
        return Ok(Literal::from_f64(&ty, value.to_f64().into_iter()));
    }
    if from.is_float() {
        return Err(unfit(&input.name, input.ty.to_string(), value.ty.to_string()));
    }
    let numbers = value.to_i128();
    let result = Literal::from_i128(&ty, numbers.iter().copied());
    match result.to_i128() == numbers {
        true => Ok(result),
        false => Err(unfit(&input.name, format!("numbers that fit {to}"), format!("larger ones in {from}"))),
    }
}

/// The value of an input. E423 for an index outside its range. `rows` are the numbers of its rows in the file.
fn check_indices(value: Literal, input: &Input, rows: &[usize]) -> Result<Literal> {
    let Some(range) = input.range.filter(|_| !value.ty.dtype.is_float()) else { return Ok(value) };
    let numbers = value.to_i128();
    let Some(at) = numbers.iter().position(|&number| !range.contains(number)) else {
        return Ok(value);
    };
    let place = match rows.get(at * rows.len() / numbers.len()) {
        Some(row) => format!("row {row} of `{}`", input.name),
        None => format!("`{}`", input.name),
    };
    let [is, help] = match range.ignored {
        None => ["has an index that is outside the embedding", "rows of an embedding are counted from 0"],
        Some(_) => ["has a label that is no class", "classes are counted from 0"],
    };
    let or = range.ignored.map_or(String::new(), |ignored| format!(", or {ignored} for what does not count"));
    Err(Diagnostic::new("E423", format!("{place} {is}"))
        .expected(format!("from 0 to {}{or}", range.count - 1))
        .found(numbers[at].to_string())
        .help(format!("mend the data: {help}")))
}

impl Feed for TensorFeed {
    fn batch(&self, step: u64) -> Result<Fed> {
        let (count, first) = (self.rows[0] as u64, step * self.batch as u64);
        let row = |sample: u64| match self.shuffle {
            Some(seed) => Permutation::new(count, seed, sample / count).at(sample % count) as usize,
            None => (sample % count) as usize,
        };
        self.rows(&(first..first + self.batch as u64).map(row).collect::<Vec<_>>())
    }

    fn validation(&self, index: u64) -> Result<Fed> {
        match self.rows[1] {
            0 => Err(Diagnostic::new("E303", "no rows are held out for validation")
                .at(self.name.clone())
                .expected(format!("at least {} rows beside those of a batch", self.batch))
                .found(format!("{} rows", self.rows[0]))),
            held => {
                let first = index * self.batch as u64;
                let row = |sample: u64| self.rows[0] + (sample % held as u64) as usize;
                self.rows(&(first..first + self.batch as u64).map(row).collect::<Vec<_>>())
            }
        }
    }

    fn validation_batches(&self) -> u64 {
        (self.rows[1] / self.batch) as u64
    }

    fn tokens_per_batch(&self) -> usize {
        self.batch
    }

    fn describe(&self) -> String {
        let order = if self.shuffle.is_some() { "shuffled in each epoch" } else { "in their order" };
        format!("{}: {} rows to train on, {order}, {} held out", self.name, self.rows[0], self.rows[1])
    }

    fn position(&self, steps: u64) -> BTreeMap<String, String> {
        let mut position = BTreeMap::from([
            ("data.rows".to_string(), (steps * self.batch as u64).to_string()),
            ("data.file".to_string(), self.name.clone()),
            ("data.digest".to_string(), self.digest.clone()),
        ]);
        position.extend(self.shuffle.map(|seed| ("data.seed".to_string(), seed.to_string())));
        position
    }

    fn resume(&self, position: &BTreeMap<String, String>) -> Result<u64> {
        let saved = |key: &str| position.get(key).map_or("nothing", String::as_str);
        // An earlier version knew a file by its name alone.
        let key = if position.contains_key("data.digest") { "data.digest" } else { "data.file" };
        if position.get(key) != self.position(0).get(key) {
            let told = |name: &str, digest: Option<&String>| {
                digest.map_or(name.to_string(), |digest| format!("{name}, {digest}"))
            };
            return Err(Diagnostic::new("E304", "the checkpoint was made with another file of data")
                .expected(told(saved("data.file"), position.get("data.digest")))
                .found(told(&self.name, Some(&self.digest)))
                .help("resume with the same data, or start a new run from the weights"));
        }
        let seed = self.shuffle.map_or("nothing".to_string(), |seed| seed.to_string());
        if saved("data.seed") != seed {
            let told = |seed: &str| match seed {
                "nothing" => "rows in the order of the file".to_string(),
                seed => format!("rows shuffled by seed {seed}"),
            };
            return Err(Diagnostic::new("E304", "the checkpoint was made with another order of the data")
                .expected(told(saved("data.seed")))
                .found(told(&seed))
                .help("set `data.shuffle` and `train.seed` as they were"));
        }
        match saved("data.rows").parse::<u64>() {
            Ok(rows) if rows % self.batch as u64 == 0 => Ok(rows / self.batch as u64),
            _ => Err(Diagnostic::new("E304", "the data position does not fall on the start of a batch")
                .expected(format!("a multiple of the batch size {}", self.batch))
                .found(format!("{} rows seen so far", saved("data.rows")))
                .help("resume with a batch size that divides it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_base::DType;
    use partita_schedule::feed::IndexRange;

    fn signature(batch: usize) -> Signature {
        let input = |name: &str, dtype, shape: &[usize]| Input {
            name: name.to_string(),
            ty: TensorType::new(dtype, shape),
            choices: 2,
            range: None,
        };
        let inputs = vec![
            input("x", DType::F32, &[batch, 2]),
            input("y", DType::I32, &[batch]),
            input("scale", DType::F64, &[]),
        ];
        Signature { inputs, is_bidirectional: false }
    }

    fn file(folder: &Path, rows: usize) -> std::path::PathBuf {
        let path = folder.join("data.safetensors");
        let numbers = |shape: &[usize], dtype| {
            let ty = TensorType::new(dtype, shape);
            Literal::from_f64(&ty, (0..ty.element_count()).map(|i| i as f64))
        };
        let tensors = IndexMap::from([
            ("x".to_string(), numbers(&[rows, 2], DType::F32)),
            ("y".to_string(), numbers(&[rows], DType::I64)),
            ("scale".to_string(), numbers(&[], DType::F32)),
            ("unused".to_string(), numbers(&[1], DType::F32)),
        ]);
        partita_import::save(&path, &tensors).unwrap();
        path
    }

    #[test]
    fn rows_come_in_order_again_and_again_without_those_held_out() {
        let folder = tempfile::tempdir().unwrap();
        let feed = TensorFeed::open(&file(folder.path(), 8), 0.4, &signature(3), 3).unwrap();
        // 8 rows, of which 3 are held out.
        assert_eq!(feed.validation_batches(), 1);
        let y = |fed: Result<Fed>| fed.unwrap()["y"].to_i64();
        assert_eq!(
            [y(feed.batch(0)), y(feed.batch(1)), y(feed.validation(0))],
            [[0, 1, 2], [3, 4, 0], [5, 6, 7]]
        );
        let fed = feed.batch(1).unwrap();
        assert_eq!(fed["x"].to_f64(), [6.0, 7.0, 8.0, 9.0, 0.0, 1.0]);
        assert_eq!((fed["y"].ty.dtype, fed["scale"].ty.dtype), (DType::I32, DType::F64));
        assert_eq!(feed.resume(&feed.position(7)).unwrap(), 7);
    }

    #[test]
    fn an_index_outside_the_embedding_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), 8);
        let mut signature = signature(2);
        signature.inputs[1].range = Some(IndexRange { count: 5, ignored: None });
        let feed = TensorFeed::open(&path, 0.0, &signature, 2).unwrap();
        assert_eq!(feed.batch(1).unwrap()["y"].to_i64(), [2, 3]);
        // The rows 4 and 5 of the file have the indices 4 and 5.
        let error = feed.batch(2).unwrap_err();
        assert_eq!((error.code, error.found.as_deref()), ("E423", Some("5")));
        assert!(error.message.contains("row 5 of `y`"), "{error}");
    }

    #[test]
    fn a_label_that_is_no_class_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), 8);
        let mut signature = signature(2);
        for (count, ignored, complaint) in [(5, -100, Some("5")), (5, 5, None), (6, -100, None)] {
            signature.inputs[1].range = Some(IndexRange { count, ignored: Some(ignored) });
            let feed = TensorFeed::open(&path, 0.0, &signature, 2).unwrap();
            let found = feed.batch(2).err().map(|error| (error.code, error.found.clone().unwrap()));
            assert_eq!(found, complaint.map(|label| ("E423", label.to_string())));
        }
    }

    #[test]
    fn complex_numbers_are_pairs_of_real_ones_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.npy");
        let header = "{'descr': '<c8', 'fortran_order': False, 'shape': (2, 1), }";
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(format!("{header:<117}\n").bytes());
        bytes.extend([1f32, 2.0, 3.0, 4.0].iter().flat_map(|part| part.to_le_bytes()));
        std::fs::write(&path, bytes).unwrap();
        let feed = |shape: &[usize]| {
            let ty = TensorType::new(DType::F32, shape.to_vec());
            let inputs = vec![Input { name: "z".to_string(), ty, choices: 2, range: None }];
            let signature = Signature { inputs, is_bidirectional: false };
            TensorFeed::open(&path, 0.0, &signature, 2).unwrap().batch(0)
        };
        assert_eq!(feed(&[2, 1, 2]).unwrap()["z"].to_f64(), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(feed(&[2, 1]).unwrap_err().code, "E306");
    }

    #[test]
    fn a_shuffled_epoch_has_every_row_once() {
        let folder = tempfile::tempdir().unwrap();
        let open = |seed| {
            let path = file(folder.path(), 14);
            TensorFeed::open(&path, 0.15, &signature(2), 2).unwrap().shuffled(seed)
        };
        let feed = open(Some(5));
        // 12 rows to train on are six batches.
        let epoch = |feed: &TensorFeed, number: u64| -> Vec<i64> {
            (6 * number..6 * number + 6).flat_map(|step| feed.batch(step).unwrap()["y"].to_i64()).collect()
        };
        let (first, second) = (epoch(&feed, 0), epoch(&feed, 1));
        let sorted = |mut rows: Vec<i64>| {
            rows.sort();
            rows
        };
        let all: Vec<i64> = (0..12).collect();
        assert_eq!((sorted(first.clone()), sorted(second.clone())), (all.clone(), all.clone()));
        assert!(first != all && first != second && first != epoch(&open(Some(6)), 0));
        assert_eq!(epoch(&open(None), 3), all);
        // Each row of one tensor stays with that of the other.
        let fed = feed.batch(2).unwrap();
        let (x, y) = (fed["x"].to_f64(), fed["y"].to_f64());
        assert_eq!((x[0], x[2]), (2.0 * y[0], 2.0 * y[1]));
        assert_eq!(feed.validation(0).unwrap()["y"].to_i64(), [12, 13]);
        assert_eq!(feed.resume(&feed.position(7)).unwrap(), 7);
        for other in [open(None), open(Some(6))] {
            assert_eq!(other.resume(&feed.position(7)).unwrap_err().code, "E304");
        }
    }

    #[test]
    fn a_file_is_known_by_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), 8);
        let open = |path: &Path| TensorFeed::open(path, 0.0, &signature(2), 2).unwrap();
        let position = open(&path).position(3);
        let moved = folder.path().join("moved.safetensors");
        std::fs::copy(&path, &moved).unwrap();
        assert_eq!(open(&moved).resume(&position).unwrap(), 3);
        // An earlier version wrote no digest.
        let mut earlier = position.clone();
        earlier.remove("data.digest");
        assert_eq!(open(&moved).resume(&earlier).unwrap_err().code, "E304");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(open(&path).resume(&earlier).unwrap(), 3);
        let error = open(&path).resume(&position).unwrap_err();
        assert_eq!(error.code, "E304");
        assert!(error.found.as_ref().unwrap().contains("sha256:"), "{error}");
    }

    #[test]
    fn ids_of_documents_give_positions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("packed.safetensors");
        let ids = Literal::new([2, 6], vec![7i64, 7, 8, 8, 8, 7, 0, 1, 1, 2, 2, 2]);
        partita_import::save(&path, &IndexMap::from([(DOCUMENTS.to_string(), ids)])).unwrap();
        let ty = TensorType::new(DType::I32, [2, 6]);
        let inputs = vec![Input { name: POSITIONS.to_string(), ty, choices: 6, range: None }];
        let signature = Signature { inputs, is_bidirectional: false };
        let fed = TensorFeed::open(&path, 0.0, &signature, 2).unwrap().batch(0).unwrap();
        assert_eq!(fed[POSITIONS].to_i64(), [0, 1, 0, 1, 2, 0, 0, 0, 1, 0, 1, 2]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path(), 4);
        let code =
            |signature: &Signature, batch| TensorFeed::open(&path, 0.0, signature, batch).err().unwrap().code;
        assert_eq!(code(&signature(5), 5), "E303");
        let mut other = signature(2);
        other.inputs[0].ty.shape[1] = 3;
        assert_eq!(code(&other, 2), "E306");
        other.inputs[0].name = "z".to_string();
        assert_eq!(code(&other, 2), "E306");
        let feed = TensorFeed::open(&path, 0.05, &signature(4), 4).unwrap();
        assert_eq!((feed.validation_batches(), feed.validation(0).unwrap_err().code), (0, "E303"));
    }
}
