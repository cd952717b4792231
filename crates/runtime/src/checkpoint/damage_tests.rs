//! Tests of damage: no bit of any file of a checkpoint may change without notice, and no folder may hold another step than
//! its name says.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use partita_comm::World;

use super::tests::{checkpoint, save, shards};
use super::*;

const CONFIG: &str = "[model]\nheads = 4\n\n[train]\nseed = 7\n";

/// A checkpoint of whole tensors, or of shards, with a config.
fn saved(dir: &Path, is_sharded: bool) -> PathBuf {
    let beside = [("config.toml".to_string(), CONFIG.to_string())].into();
    let whole = Checkpoint { beside, ..checkpoint(20) };
    if !is_sharded {
        return save(&FileStorage, dir, &whole, 2).unwrap();
    }
    let world = World::in_process(1, vec![]).unwrap();
    let folder = Arc::new(RunFolder::create(dir, 2).unwrap());
    let whole = Checkpoint { tensors: IndexMap::new(), ..whole };
    let saving = Saving::begin(Some(&folder), &world, Arc::new(FileStorage), whole, Some(shards(20)));
    saving.unwrap().finish(&world).unwrap()
}

/// Writes the manifest that the files of a folder have now.
pub(super) fn sealed(path: &Path) {
    let old = Manifest::parse(&fs::read(path.join(MANIFEST_FILE)).unwrap()).unwrap();
    let state = |name: &String| (name.clone(), FileState::from_bytes(&fs::read(path.join(name)).unwrap()));
    let files = old.files.keys().map(state).collect();
    fs::write(path.join(MANIFEST_FILE), Manifest::new(old.step, files).bytes()).unwrap();
}

/// Reads a checkpoint as a run on its own mesh does: of shards, part by part.
fn resumed(path: &Path) -> Result<()> {
    let opened = Opened::open(path)?;
    match opened.types() {
        None => opened.load().map(drop),
        Some(types) => types.into_iter().try_for_each(|(name, (_, shape))| {
            opened.regions(name, &[(vec![0; shape.len()], shape.to_vec())]).map(drop)
        }),
    }
}

/// Flips every bit of a `stride` of each file, one at a time: how many flips there were. The first that passes fails.
fn flipped(path: &Path, stride: usize) -> usize {
    let mut flips = 0;
    for name in FileStorage.list(path).unwrap() {
        let file = path.join(&name);
        let bytes = fs::read(&file).unwrap();
        for bit in (0..8 * bytes.len()).step_by(stride) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &changed).unwrap();
            for (way, read) in [("verify", load(path).map(drop)), ("resume", resumed(path))] {
                let code = read.map_err(|error| error.code);
                assert_eq!(code, Err("E312"), "bit {bit} of {name} passes {way}");
            }
            flips += 1;
        }
        fs::write(&file, bytes).unwrap();
    }
    load(path).unwrap();
    resumed(path).unwrap();
    flips
}

#[test]
fn no_bit_of_any_file_flips_without_notice() {
    for is_sharded in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = saved(dir.path(), is_sharded);
        let files = FileStorage.list(&path).unwrap();
        let tensors: &[&str] =
            if is_sharded { &["shards-00000.safetensors"] } else { &[MODEL_FILE, OPTIMIZER_FILE] };
        let mut expected = [&["config.toml", MANIFEST_FILE, STATE_FILE], tensors].concat();
        expected.sort();
        assert_eq!(files, expected);
        let flips = flipped(&path, 3);
        assert!(flips > 2000, "{flips}");
    }
}

/// All bits of both kinds: `cargo test -p partita-runtime --release -- --ignored every_bit_of_every_file`.
#[test]
#[ignore = "reads a checkpoint some 50,000 times"]
fn every_bit_of_every_file_is_noticed() {
    for is_sharded in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let flips = flipped(&saved(dir.path(), is_sharded), 1);
        println!("sharded {is_sharded}: {flips} flips, all of them noticed");
    }
}

#[test]
fn a_folder_with_the_name_of_another_step_is_refused() {
    for is_sharded in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = saved(dir.path(), is_sharded);
        let other = dir.path().join("step-00000040");
        fs::rename(&path, &other).unwrap();
        let error = load(&other).unwrap_err();
        assert_eq!(error.code, "E312");
        assert!(error.expected.as_ref().unwrap().contains("step 40"), "{error}");
        assert_eq!(error.found.as_deref(), Some("the state after step 20"));
        // Under a name that is of no step, it is what it was; so it is if its step was saved before.
        for name in ["best", "step-00000020.1"] {
            let kept = dir.path().join(name);
            fs::rename(&other, &kept).unwrap();
            assert_eq!(load(&kept).unwrap().step, 20);
            fs::rename(&kept, &other).unwrap();
        }
    }
}

#[test]
fn a_file_of_another_checkpoint_or_none_is_noticed() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = saved(dir.path(), false);
    let other = save(&FileStorage, elsewhere.path(), &checkpoint(21), 1).unwrap();
    for name in FileStorage.list(&path).unwrap() {
        let file = path.join(&name);
        let own = fs::read(&file).unwrap();
        if let Ok(bytes) = fs::read(other.join(&name)) {
            fs::write(&file, bytes).unwrap();
            assert_eq!(load(&path).unwrap_err().code, "E312", "{name} of another step");
        }
        fs::remove_file(&file).unwrap();
        let error = load(&path).unwrap_err();
        assert_eq!((error.code, error.at), ("E312", Some(file.display().to_string())), "without {name}");
        fs::write(&file, own).unwrap();
    }
    // What others put beside the files of a checkpoint is none of its business.
    fs::write(path.join("notes.txt"), "mine").unwrap();
    load(&path).unwrap();
}

/// Makes of a checkpoint what versions before there was a manifest have written.
fn aged(path: &Path, format: &str) {
    let mut state: State = serde_json::from_slice(&fs::read(path.join(STATE_FILE)).unwrap()).unwrap();
    let tensors = FileStorage.list(path).unwrap().into_iter().filter(|name| name.ends_with(".safetensors"));
    state.files = tensors
        .map(|name| {
            let bytes = fs::read(path.join(&name)).unwrap();
            let checksum = manifest::checksum(&bytes);
            (name, FileState { bytes: bytes.len() as u64, checksum })
        })
        .collect();
    state.format = format.to_string();
    state.heads.clear();
    fs::write(path.join(STATE_FILE), serde_json::to_vec_pretty(&state).unwrap()).unwrap();
    fs::remove_file(path.join(MANIFEST_FILE)).unwrap();
}

#[test]
fn a_checkpoint_from_before_manifests_is_read_and_says_so() {
    for (is_sharded, format) in [(false, "partita-checkpoint-1"), (true, "partita-checkpoint-2")] {
        let dir = tempfile::tempdir().unwrap();
        let path = saved(dir.path(), is_sharded);
        assert!(Opened::open(&path).unwrap().has_manifest());
        aged(&path, format);
        let opened = Opened::open(&path).unwrap();
        assert!(!opened.has_manifest());
        assert_eq!(opened.load().unwrap().tensors, checkpoint(20).tensors);
        resumed(&path).unwrap();
        // Its tensors and its step are still looked after.
        let file = path.join(if is_sharded { "shards-00000.safetensors" } else { MODEL_FILE });
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(load(&path).unwrap_err().code, "E312");
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, &bytes).unwrap();
        fs::rename(&path, dir.path().join("step-00000040")).unwrap();
        assert_eq!(load(&dir.path().join("step-00000040")).unwrap_err().code, "E312");
    }
}

/// What the manifest and its digests cost of a save and of a load of 500 MB, beside the same without: minima of `ROUNDS`
/// of each, alternating. `cargo test -p partita-runtime --release -- --ignored --nocapture what_digests_cost`.
#[test]
#[ignore = "writes some 15 GB"]
fn what_digests_cost() {
    const ROUNDS: usize = 12;
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state.to_le_bytes()
    };
    let mut large = Checkpoint { step: 1, ..checkpoint(1) };
    for name in 0..10 {
        for slot in ["", "optimizer.exp_avg.", "optimizer.exp_avg_sq."] {
            let bytes: Vec<u8> = (0..1 << 21).flat_map(|_| random()).collect();
            let tensor = TensorData::new(DType::F32, vec![1 << 11, 1 << 11], bytes);
            large.tensors.insert(format!("{slot}layers.{name}.weight"), tensor);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let plain_folder = dir.path().join("plain");
    let plain_save = || {
        let _ = fs::remove_dir_all(&plain_folder);
        let start = std::time::Instant::now();
        let files = save::encode(&large, 1);
        let unfinished = dir.path().join("unfinished");
        FileStorage.create_folder(&unfinished).unwrap();
        for (name, bytes) in &files {
            FileStorage.write(&unfinished.join(name), bytes).unwrap();
        }
        FileStorage.sync_folder(&unfinished).unwrap();
        FileStorage.rename(&unfinished, &plain_folder).unwrap();
        FileStorage.sync_folder(dir.path()).unwrap();
        FileStorage.write(&dir.path().join("latest.new"), b"plain").unwrap();
        FileStorage.rename(&dir.path().join("latest.new"), &dir.path().join("latest")).unwrap();
        FileStorage.sync_folder(dir.path()).unwrap();
        start.elapsed()
    };
    let run = dir.path().join("run");
    let sealed_save = || {
        let _ = fs::remove_dir_all(&run);
        fs::create_dir(&run).unwrap();
        let start = std::time::Instant::now();
        save::write(&FileStorage, &run, &large, 1).unwrap();
        start.elapsed()
    };
    let plain_load = || {
        let start = std::time::Instant::now();
        let mut tensors = IndexMap::new();
        for name in [MODEL_FILE, OPTIMIZER_FILE] {
            let file = plain_folder.join(name);
            read::parse(&file, &fs::read(&file).unwrap(), &mut tensors).unwrap();
        }
        assert_eq!(tensors.len(), large.tensors.len());
        start.elapsed()
    };
    let sealed_load = || {
        let start = std::time::Instant::now();
        assert_eq!(load(&run).unwrap().tensors.len(), large.tensors.len());
        start.elapsed()
    };
    let mut least = [f64::MAX; 4];
    for round in 0..ROUNDS {
        // Who begins changes, so that none profits from the other.
        let mut order = [0, 1];
        order.rotate_left(round % 2);
        for which in order {
            let times = match which {
                0 => [plain_save(), plain_load()],
                _ => [sealed_save(), sealed_load()],
            };
            for (kind, time) in times.into_iter().enumerate() {
                let slot = &mut least[2 * kind + which];
                *slot = slot.min(time.as_secs_f64());
            }
        }
    }
    let [plain_save, sealed_save, plain_load, sealed_load] = least;
    for (what, plain, sealed) in [("save", plain_save, sealed_save), ("load", plain_load, sealed_load)] {
        println!(
            "{what}: {plain:.3} s without digests, {sealed:.3} s with, {:+.1} %",
            100.0 * (sealed / plain - 1.0)
        );
    }
}
