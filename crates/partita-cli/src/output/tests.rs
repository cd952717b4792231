//! Tests of lines and events, without a terminal.

use super::*;
use events::{ByPhase, CollectiveCounts};
use partita_schedule::verify::TensorError;
use serde_json::Value;
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Clone, Default)]
struct Captured(Rc<RefCell<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
    fn lines(&self) -> Vec<String> {
        self.text().lines().map(str::to_string).collect()
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn output(json: bool, log_every: Option<u64>) -> (Output, Captured, Captured) {
    let (out, err) = (Captured::default(), Captured::default());
    let mut output = Output::to(Box::new(out.clone()), Box::new(err.clone()), json);
    output.log_every(log_every);
    (output, out, err)
}

fn step(step: u64) -> Step {
    Step {
        step,
        loss: 3.25,
        grad_norm: Some(0.5),
        loss_scale: None,
        skipped_steps: None,
        rows_per_s: 192.9,
        tokens_per_s: 12_345.0,
        peak_bytes_planned: 3 << 20,
        peak_bytes_used: Some(2 << 20),
        learning_rate: 3e-3,
    }
}

/// A comparison of two builds reads the bits of a loss from its decimals.
#[test]
fn json_numbers_read_back_to_the_same_bits() {
    let losses = [
        0.1 + 0.2,
        1.0 / 3.0,
        f64::from(5.514_751_4_f32),
        f64::from_bits(1.0f64.to_bits() + 1),
        f64::MIN_POSITIVE / 3.0,
        -0.0,
        1.234_567_890_123_456_7e-300,
    ];
    for loss in losses {
        let (mut output, out, _) = output(true, None);
        output.step(&Step { loss, grad_norm: Some(loss / 7.0), ..step(1) });
        let text = out.text();
        let number = |key: &str| -> f64 {
            let (_, rest) = text.split_once(&format!("\"{key}\":")).unwrap();
            rest.split([',', '}']).next().unwrap().parse().unwrap()
        };
        assert_eq!(number("loss").to_bits(), loss.to_bits(), "{text}");
        assert_eq!(number("grad_norm").to_bits(), (loss / 7.0).to_bits(), "{text}");
    }
}

fn report(ok: bool) -> Report {
    let tensor = |index: usize| TensorError {
        tensor: format!("grad.{index}"),
        rel_error: 1e-7 * index as f64,
        of_permitted: 1e-3 * index as f64,
        excused: usize::from(index == 2),
        wrong: usize::from(!ok && index == 0),
    };
    let first_diverging = (!ok).then(|| "%7".to_string());
    Report { ok, tensors: (0..8).map(tensor).collect(), tolerance: 1e-4, first_diverging }
}

/// The one JSON line printed, and its keys in order of the alphabet.
fn event(print: impl FnOnce(&mut Output)) -> (Value, Vec<String>) {
    let (mut output, out, _) = output(true, None);
    print(&mut output);
    assert_eq!(out.lines().len(), 1, "{}", out.text());
    let value: Value = serde_json::from_str(&out.text()).unwrap();
    let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    (value, keys)
}

#[test]
fn json_events_have_exactly_their_keys() {
    let (value, keys) = event(|o| o.step(&step(3)));
    assert_eq!(
        keys,
        [
            "event",
            "grad_norm",
            "loss",
            "peak_bytes_planned",
            "peak_bytes_used",
            "rows_per_s",
            "step",
            "tokens_per_s"
        ]
    );
    assert_eq!((value["event"].as_str(), value["loss"].as_f64()), (Some("step"), Some(3.25)));

    let (value, keys) = event(|o| o.validation(&Validation { step: 5, loss: 2.0 }));
    assert_eq!(keys, ["event", "loss", "step"]);
    assert_eq!(value["event"], "validation");

    let (value, keys) = event(|o| o.verify(&report(false)));
    assert_eq!(keys, ["event", "excused", "first_diverging", "ok", "worst"]);
    assert_eq!((&value["worst"]["tensor"], &value["excused"]), (&"grad.0".into(), &1.into()));
    assert_eq!(value["first_diverging"], "%7");
    let worst: Vec<&String> = value["worst"].as_object().unwrap().keys().collect();
    assert_eq!(worst.len(), 3);
    assert!(value["worst"]["rel_error"].is_number());

    let backward = CollectiveCounts { send: 4, ..Default::default() };
    let meetings = ByPhase { backward, ..Default::default() };
    let bytes = ByPhase { forward: 9, ..Default::default() };
    let counts = Counts { rank: 3, meetings, bytes, logical: meetings };
    let (value, keys) = event(|o| o.counts(&counts));
    assert_eq!(keys, ["backward", "bytes", "event", "forward", "logical", "rank", "update"]);
    assert_eq!(value["backward"]["send"], 4);
    assert_eq!((&value["bytes"]["forward"], &value["logical"]["backward"]["send"]), (&9.into(), &4.into()));
    let mut kinds: Vec<&String> = value["forward"].as_object().unwrap().keys().collect();
    kinds.sort();
    let expected = ["all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter", "send"];
    assert_eq!(kinds, expected);

    let (value, keys) = event(|o| o.summary(&Summary { steps: 7, ..Default::default() }));
    for key in [
        "steps",
        "model_nats",
        "bigram_nats",
        "unigram_nats",
        "tokens_per_s",
        "seconds",
        "checkpoint",
        "verify_ok",
    ] {
        assert!(keys.iter().any(|k| k == key), "{key}");
    }
    assert_eq!((&value["event"], &value["verify_ok"]), (&"summary".into(), &Value::Null));

    let (value, keys) = event(|o| o.note("two\nlines"));
    assert_eq!(
        (keys, value["message"].as_str()),
        (vec!["event".into(), "message".into()], Some("two\nlines"))
    );
    let (value, _) = event(|o| o.sample(b"a", b"\x1b"));
    assert_eq!(value["text"], "\\u{1b}");
}

#[test]
fn what_is_not_a_number_is_null_in_json() {
    let (value, _) = event(|o| o.step(&Step { loss: f64::NAN, peak_bytes_used: None, ..step(1) }));
    assert_eq!((&value["loss"], &value["peak_bytes_used"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_step_is_one_aligned_line() {
    let (mut output, out, err) = output(false, None);
    output.begin(1, 12);
    output.step(&step(1));
    output.step(&Step { loss: 123.456789, grad_norm: None, rows_per_s: 0.5, tokens_per_s: 9.0, ..step(12) });
    let lines = out.lines();
    assert_eq!(
        lines[0],
        "step  1/12  loss    3.2500  grad norm    0.5000  lr 3.00e-3   12.3k tokens/s  memory 3.0 MiB (2.0 MiB used)"
    );
    assert_eq!(lines[0].len(), lines[1].len());
    assert_eq!(err.text(), "");
}

/// A model of images has rows, which its run counts as such.
#[test]
fn throughput_without_tokens_is_in_rows() {
    let (mut output, out, _) = output(false, None);
    output.begin(1, 1);
    output.step(&Step { rows_per_s: 12_345.0, ..step(1) });
    let rate = 20.0;
    output.summary(&Summary {
        rows_per_s: rate,
        tokens_per_s: rate,
        tokens_per_s_one_device: Some(rate),
        ..Summary::default()
    });
    let text = out.text();
    assert!(text.contains(" 12.3k rows/s ") && !text.contains("tokens"), "{text}");
    assert_eq!(text.matches(" rows/s").count(), 3, "{text}");
}

#[test]
fn unwatched_runs_print_about_fifty_steps_and_both_ends() {
    let shown = |json, every, first, total| {
        let (mut output, out, _) = output(json, every);
        output.begin(first, total);
        (first..=total).for_each(|s| output.step(&step(s)));
        out.lines()
    };
    assert_eq!(shown(false, None, 1, 50).len(), 50);
    let many = shown(false, None, 1, 1009);
    assert!((45..=52).contains(&many.len()), "{}", many.len());
    assert!(many[0].starts_with("step    1/1009") && many[many.len() - 1].starts_with("step 1009/1009"));
    // A resumed run counts what is left.
    assert_eq!(shown(false, None, 991, 1000).len(), 10);
    assert_eq!(shown(false, Some(100), 1, 1000).len(), 11);
    assert_eq!(shown(false, Some(0), 1, 70).len(), 70);
    assert_eq!(shown(true, None, 1, 200).len(), 200);
}

#[test]
fn a_step_is_shown_after_ten_seconds_of_silence() {
    let (mut output, out, _) = output(false, Some(1000));
    output.begin(1, 1000);
    output.step(&step(1));
    output.step(&step(2));
    assert_eq!(out.lines().len(), 1);
    output.shown = Instant::now().checked_sub(LONGEST_SILENCE).expect("the clock is older");
    output.step(&step(3));
    output.step(&step(4));
    assert_eq!(out.lines().len(), 2);
    assert!(out.lines()[1].starts_with("step    3/1000"), "{}", out.text());
}

#[test]
fn errors_go_to_standard_error_and_into_json() {
    let diagnostic = Diagnostic::new("E201", "mesh does not fit")
        .expected("a divisor of 4")
        .found("3\nno")
        .help("use dp=2");
    for json in [false, true] {
        let (mut output, out, err) = output(json, None);
        output.error(&diagnostic);
        assert_eq!(err.text(), format!("{diagnostic}\n"));
        if json {
            let value: Value = serde_json::from_str(&out.text()).unwrap();
            let expected = serde_json::json!({"event": "error", "code": "E201", "message": "mesh does not fit", "at": null,
                "expected": "a divisor of 4", "found": "3\nno", "help": "use dp=2"});
            assert_eq!(value, expected);
        } else {
            assert_eq!(out.text(), "");
        }
    }
}

#[test]
fn colour_changes_no_text() {
    let diagnostic = Diagnostic::new("E201", "mesh: does not fit").found("3\n  : no").help("use dp=2");
    let coloured = coloured(&diagnostic);
    assert!(coloured.starts_with("\x1b[1;31merror[E201]\x1b[0m"), "{coloured}");
    let mut plain = coloured;
    for code in ["\x1b[1;31m", "\x1b[1m", "\x1b[36m", "\x1b[0m"] {
        plain = plain.replace(code, "");
    }
    assert_eq!(plain, diagnostic.to_string());
}

#[test]
fn a_verification_shows_the_worst_tensors_first() {
    let text = verify_text(&report(false), "one device");
    let first: Vec<&str> = text.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert_eq!(first[..6], ["tensor", "grad.0", "grad.7", "grad.6", "grad.5", "grad.4"]);
    assert!(text.contains("and 3 more tensors"), "{text}");
    assert!(text.contains("first value that differs: %7"), "{text}");
    assert!(text.ends_with("NOT verified: 1 of 8 tensors differ by more than rounding explains\n"), "{text}");
    assert!(
        verify_text(&report(true), "one device")
            .ends_with("verified: 8 tensors agree with one device within 1e-4\n")
    );
}

#[test]
fn ranks_that_disagree_are_told_without_a_table() {
    let first_diverging = Some("%7: copies differ".to_string());
    let text = verify_text(
        &Report { ok: false, tensors: Vec::new(), tolerance: 1e-4, first_diverging },
        "one device",
    );
    let expected = "first value that differs: %7: copies differ\nNOT verified: ranks disagree on what should be one value\n";
    assert_eq!(text, expected);
}

#[test]
fn counts_and_summaries_read_as_tables() {
    let six = ByPhase {
        forward: CollectiveCounts { all_reduce: 6, ..Default::default() },
        backward: CollectiveCounts { all_gather: 2, ..Default::default() },
        ..Default::default()
    };
    let mut logical = six;
    logical.forward.all_reduce = 14;
    let bytes = ByPhase { forward: 2048, ..Default::default() };
    let text = counts_table(&Counts { rank: 2, meetings: six, bytes, logical });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "phase     all_reduce  all_gather    bytes");
    assert_eq!(lines[1], "forward       6 (14)           -  2.0 KiB");
    assert_eq!(lines[2], "backward           -           2      0 B");

    let summary = Summary {
        steps: 9,
        model_nats: Some(2.1),
        bigram_nats: Some(2.5),
        validation_loss: Some(2.1),
        ..Default::default()
    };
    let text = summary_table(&summary);
    assert!(
        text.contains("model            2.1000 nats/byte\nbigram counts    2.5000 nats/byte\n"),
        "{text}"
    );
    assert!(!text.contains("validation loss") && !text.contains("checkpoint"), "{text}");
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let err = Captured::default();
    let mut output = Output::to(Box::new(Closed), Box::new(err.clone()), true);
    output.note("anyone?");
    output.error(&Diagnostic::new("E001", "no"));
    assert_eq!(err.text(), "error[E001]: no\n");
}
