//! Everything printed: lines for people, or with `--json` one JSON object per line on standard output.
//!
//! People read results on standard output; the progress bar and what is wrong go to standard error. A reader that went
//! away (`partita lower gpt | head`) is no error.

pub mod events;
pub mod format;
pub mod live;
pub mod progress;
pub mod tensors;

use events::{
    Bucket, Counts, Edges, Event, Failure, KeptRows, Note, Overlaps, Sample, Step, Stopped, Summary, Text,
    Validation, Verify,
};
use format::{bytes, coloured, duration, number, short, table, unit};
use indicatif::{ProgressBar, ProgressStyle};
use live::{Live, rank_states};
use partita_base::Diagnostic;
use partita_program::EdgeCounts;
use partita_runtime::Runner;
use partita_schedule::verify::Report;
use progress::{Pace, Working};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// A run whose output is not a terminal prints about this many steps.
const STEPS_SHOWN: u64 = 50;
/// A step is shown where nothing has been for so long, whatever else says so.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);
/// Tensors shown by a verification.
const TENSORS_SHOWN: usize = 5;

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a, E> {
    event: &'static str,
    #[serde(flatten)]
    fields: &'a E,
}

/// Where and how things are printed.
pub struct Output {
    json: bool,
    /// Standard output is a terminal: every step is shown.
    terminal: bool,
    /// Standard error is a terminal that wants colour.
    colour: bool,
    /// Standard error is a terminal: a bar may be drawn.
    bar_wanted: bool,
    /// How often the progress of long work is printed on standard error; `None` for never.
    pace: Option<Pace>,
    log_every: Option<u64>,
    first_step: u64,
    total_steps: u64,
    /// When a step was shown last, or the loop began.
    shown: Instant,
    bar: Option<ProgressBar>,
    /// The view in place of lines for steps.
    live: Option<Live>,
    out: Box<dyn Write>,
    /// The first reason why something could not be printed, unless the reader has closed the pipe.
    lost: Option<std::io::Error>,
    err: Box<dyn Write>,
}

/// The line of an event in JSON.
pub(crate) fn json_line<E: Event>(event: &E) -> String {
    let line = Line { event: E::NAME, fields: event };
    serde_json::to_string(&line).expect("events are plain structs") + "\n"
}

impl Output {
    /// Prints to standard output and standard error.
    pub fn new(json: bool) -> Output {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let error_terminal = std::io::stderr().is_terminal();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Output {
            terminal: std::io::stdout().is_terminal(),
            colour: error_terminal && !set("NO_COLOR") && !dumb,
            bar_wanted: error_terminal && !json && !dumb,
            pace: Some(Pace::of(error_terminal && !dumb)),
            ..Output::to(Box::new(std::io::stdout()), Box::new(std::io::stderr()), json)
        }
    }

    /// Prints nothing: for a process of several that is not the first.
    pub fn silent(json: bool) -> Output {
        Output::to(Box::new(std::io::sink()), Box::new(std::io::sink()), json)
    }

    /// Prints to these two, neither of them a terminal.
    pub fn to(out: Box<dyn Write>, err: Box<dyn Write>, json: bool) -> Output {
        Output {
            json,
            terminal: false,
            colour: false,
            bar_wanted: false,
            pace: None,
            log_every: None,
            first_step: 1,
            total_steps: 0,
            shown: Instant::now(),
            bar: None,
            live: None,
            out,
            lost: None,
            err,
        }
    }

    /// Of steps, prints every so many; `None` chooses.
    pub fn log_every(&mut self, steps: Option<u64>) {
        self.log_every = steps.map(|steps| steps.max(1));
    }

    /// Whether machines read this.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints any event as a JSON line; nothing without `--json`.
    pub fn emit<E: Event>(&mut self, event: &E) {
        if !self.json {
            return;
        }
        self.print(&json_line(event));
    }

    /// From here on steps are a view that is drawn in place, if standard output is a terminal for people; otherwise nothing
    /// changes, and it returns false.
    pub fn go_live(&mut self, title: &str) -> bool {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        self.live = (self.terminal && !self.json && !dumb).then(|| Live::new(title));
        self.live.is_some()
    }

    /// A step was run by this; only the view looks at it.
    pub fn ran(&mut self, runner: &Runner) {
        if let Some(live) = self.live.as_mut().filter(|live| live.is_due()) {
            live.ranks(rank_states(runner));
        }
    }

    fn draw(&mut self) {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
        let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
        let (columns, rows) = size.filter(|&(columns, rows)| columns > 0 && rows > 0).unwrap_or((80, 24));
        if let Some(live) = &mut self.live {
            let drawing = live.drawing(columns, rows);
            let _ = self.out.write_all(drawing.as_bytes());
            let _ = self.out.flush();
        }
    }

    /// A step loop begins: `first` is the first step to be done (1 in a fresh run), `total` the last.
    pub fn begin(&mut self, first: u64, total: u64) {
        (self.first_step, self.total_steps) = (first, total);
        self.shown = Instant::now();
        if let Some(live) = &mut self.live {
            live.begin(first, total);
            return self.draw();
        }
        if !self.bar_wanted {
            return;
        }
        let template = "{bar:30} {pos}/{len}  {elapsed} elapsed, {eta} left";
        let bar = ProgressBar::new(total);
        bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
        bar.set_position(first.saturating_sub(1));
        self.bar = Some(bar);
    }

    /// The step loop ended: the bar goes, and the view stays as it is.
    pub fn end(&mut self) {
        if self.live.is_some() {
            self.draw();
            self.live = None;
        }
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// So many of what [`Output::begin`] spoke of are done.
    pub fn progress(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }

    /// A step was done. If the output is not a terminal and `--log-every` is not given, only some steps are
    /// shown; in JSON, all.
    pub fn step(&mut self, step: &Step) {
        self.progress(step.step);
        if let Some(live) = &mut self.live {
            let is_due = live.is_due();
            live.step(step);
            if is_due {
                self.draw();
            }
            return;
        }
        if !self.shows(step.step) {
            return;
        }
        self.shown = Instant::now();
        self.emit(step);
        if self.json {
            return;
        }
        let width = self.total_steps.to_string().len();
        let used = step.peak_bytes_used.map_or(String::new(), |used| format!(" ({} used)", bytes(used)));
        let memory = match step.peak_bytes_planned {
            0 => String::new(),
            planned => format!("  memory {}{used}", bytes(planned)),
        };
        let line = format!(
            "step {:>width$}/{}  loss {:>9}  grad norm {:>9}  lr {:.2e}  {:>6} {}{memory}\n",
            step.step,
            self.total_steps,
            number(step.loss),
            step.grad_norm.map_or("-".to_string(), number),
            step.learning_rate,
            short(step.tokens_per_s),
            unit(step.rows_per_s, step.tokens_per_s),
        );
        self.print(&line);
    }

    fn shows(&self, step: u64) -> bool {
        let every = match self.log_every {
            Some(every) => every,
            None if self.json || self.terminal => 1,
            None => (self.total_steps + 1).saturating_sub(self.first_step).div_ceil(STEPS_SHOWN).max(1),
        };
        let is_due = step == self.first_step || step == self.total_steps || step.is_multiple_of(every);
        is_due || self.shown.elapsed() >= LONGEST_SILENCE
    }

    /// A validation was done.
    pub fn validation(&mut self, validation: &Validation) {
        self.emit(validation);
        if let Some(live) = &mut self.live {
            live.validation(validation);
        } else if !self.json {
            let width = self.total_steps.to_string().len();
            let Validation { step, loss } = validation;
            self.print(&format!(
                "step {step:>width$}/{}  validation loss {}\n",
                self.total_steps,
                number(*loss)
            ));
        }
    }

    /// The run is over.
    pub fn summary(&mut self, summary: &Summary) {
        self.end();
        self.emit(summary);
        if !self.json {
            self.print(&format!("\n{}", summary_table(summary)));
        }
    }

    /// The run was stopped before its last step.
    pub fn stopped(&mut self, stopped: &Stopped) {
        self.end();
        self.emit(stopped);
        if !self.json {
            let Stopped { step, checkpoint, resume } = stopped;
            let saved =
                checkpoint.as_ref().map_or(String::new(), |path| format!("; the checkpoint is {path}"));
            self.print(&format!("\nstopped after step {step} of {}{saved}\n", self.total_steps));
            self.print(&format!("to go on, run the same command with --resume {resume}\n"));
        }
    }

    /// Writes one line to standard error, from any thread, above the bar where there is one; below the view instead.
    pub fn announcer(&self) -> impl FnOnce(&str) + Send + use<> {
        let bar = self.bar.clone();
        let view = self.live.as_ref().map(Live::message);
        move |message: &str| {
            if let Some(view) = view {
                *view.lock().unwrap_or_else(PoisonError::into_inner) = message.to_string();
                return;
            }
            let write = || {
                let _ = writeln!(std::io::stderr(), "{message}");
            };
            match bar {
                Some(bar) => bar.suspend(write),
                None => write(),
            }
        }
    }

    /// A verification was done; people see the tensors that are furthest off.
    pub fn verify(&mut self, report: &Report) {
        self.emit(&Verify::from(report));
        if !self.json {
            self.print(&verify_text(report, "one device"));
        }
    }

    /// A comparison with a file.
    pub fn verify_against(&mut self, report: &Report, file: &str) {
        let compared = report.tensors.iter().map(|tensor| tensor.tensor.clone()).collect();
        self.emit(&Verify {
            against: Some(file.to_string()),
            compared: Some(compared),
            ..Verify::from(report)
        });
        if !self.json {
            self.print(&format!("compared: {}\n{}", compared_names(report), verify_text(report, file)));
        }
    }

    /// The communication of a step.
    pub fn counts(&mut self, counts: &Counts) {
        self.emit(counts);
        if !self.json {
            self.print(&counts_table(counts));
        }
    }

    /// What crosses between the stages of a pipeline; nothing without a pipeline.
    pub fn edges(&mut self, counts: &EdgeCounts) {
        if counts.rows.is_empty() {
            return;
        }
        self.emit(&Edges::from(counts));
        if !self.json {
            self.print(&format!("\n{counts}"));
        }
    }

    /// The compute of a rank that overlaps with each of its gradient buckets.
    pub fn overlaps(&mut self, overlaps: &Overlaps) {
        self.emit(overlaps);
        if !self.json && !overlaps.buckets.is_empty() {
            self.print(&overlap_table(overlaps));
        }
    }

    /// What a rank may keep for its backward pass.
    pub fn kept(&mut self, rows: &KeptRows) {
        self.emit(rows);
        if !self.json {
            self.print(&rows.text());
        }
    }

    /// A note for the user.
    pub fn note(&mut self, message: impl Into<String>) {
        let note = Note { message: message.into() };
        self.emit(&note);
        if !self.json {
            self.print(&format!("{}\n", note.message));
        }
    }

    /// What the trained model wrote after `prompt`; both are made safe to print.
    pub fn sample(&mut self, prompt: &[u8], text: &[u8]) {
        let sample = Sample { prompt: partita::sample::render(prompt), text: partita::sample::render(text) };
        self.emit(&sample);
        if !self.json {
            let whole = format!("{}{}", sample.prompt, sample.text);
            self.print(&format!("\nsample\n  {}\n", whole.replace('\n', "\n  ")));
        }
    }

    /// Text that is the answer itself.
    pub fn text(&mut self, text: impl Into<String>) {
        let text = Text { text: text.into() };
        self.emit(&text);
        if !self.json {
            let end = if text.text.ends_with('\n') || text.text.is_empty() { "" } else { "\n" };
            self.print(&format!("{}{end}", text.text));
        }
    }

    /// Work that may take long begins; it ends when the returned value is dropped.
    pub fn working(&self, what: &str) -> Working {
        match self.pace {
            Some(pace) => Working::telling(what, pace, std::io::stderr()),
            None => Working::silently(),
        }
    }

    /// Does some work that may take long.
    pub fn during<T>(&self, what: &str, work: impl FnOnce() -> T) -> T {
        let _working = self.working(what);
        work()
    }

    /// Something to know meanwhile: on standard error.
    pub fn waiting(&mut self, message: &str) {
        let _ = writeln!(self.err, "{message}");
        let _ = self.err.flush();
    }

    /// What is wrong: on standard error, with `--json` also as an event.
    pub fn error(&mut self, diagnostic: &Diagnostic) {
        self.end();
        self.emit(&Failure {
            code: diagnostic.code.to_string(),
            message: diagnostic.message.clone(),
            at: diagnostic.at.clone(),
            expected: diagnostic.expected.clone(),
            found: diagnostic.found.clone(),
            help: diagnostic.help.clone(),
        });
        let text = if self.colour { coloured(diagnostic) } else { diagnostic.to_string() };
        let _ = writeln!(self.err, "{text}");
        let _ = self.err.flush();
    }

    /// E043 if not all could be printed, on a full disk for instance.
    pub fn lost(&mut self) -> Option<Box<Diagnostic>> {
        self.lost.take().as_ref().map(incomplete)
    }

    /// The work continues after a failed write. That a reader has closed its pipe is no loss; anything else is, see
    /// [`Output::lost`].
    fn print(&mut self, text: &str) {
        let (out, lost) = (&mut self.out, &mut self.lost);
        // What is printed remains above the view, which the next step draws again.
        let erasing = self.live.as_mut().map(Live::erasing).unwrap_or_default();
        let text = &format!("{erasing}{text}");
        let mut write = || {
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            let error = written.err().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe);
            *lost = lost.take().or(error);
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// E043: not all could be printed.
pub fn incomplete(error: &std::io::Error) -> Box<Diagnostic> {
    Diagnostic::new("E043", "standard output is not complete")
        .expected("room for all that is printed")
        .found(error.to_string())
        .help("what was printed ends early: free space, or print to another file")
}

fn summary_table(summary: &Summary) -> String {
    let mut rows: Vec<(&str, String)> = vec![("steps", summary.steps.to_string())];
    let mut add = |label, value: Option<String>| rows.extend(value.map(|value| (label, value)));
    let nats = |value: f64| format!("{value:.4} nats/byte");
    add("training loss", summary.loss.map(number));
    // In nats it has a line of its own.
    add("validation loss", summary.validation_loss.filter(|_| summary.model_nats.is_none()).map(number));
    add("model", summary.model_nats.map(nats));
    add("bigram counts", summary.bigram_nats.map(nats));
    add("unigram counts", summary.unigram_nats.map(nats));
    // A resumed run may have had nothing left to do.
    let has_run = summary.tokens_per_s > 0.0;
    let unit = unit(summary.rows_per_s, summary.tokens_per_s);
    add("speed", has_run.then(|| format!("{} {unit}", short(summary.tokens_per_s))));
    let alone =
        |speed: f64| format!("{} {unit}, with the cores that the ranks of the mesh share", short(speed));
    add("one device", summary.tokens_per_s_one_device.map(alone));
    add("time", Some(duration(summary.seconds)));
    let used = summary.peak_bytes_used.map_or(String::new(), |used| format!(", {} used", bytes(used)));
    let has_memory = has_run && summary.peak_bytes_planned > 0;
    add(
        "memory per rank",
        has_memory.then(|| format!("{} planned{used}", bytes(summary.peak_bytes_planned))),
    );
    add("verified", summary.verify_ok.map(|ok| if ok { "yes".into() } else { "no: results differ".into() }));
    add("checkpoint", summary.checkpoint.clone());
    rows.iter().map(|(label, value)| format!("{label:<16} {value}\n")).collect()
}

/// The compared tensors: outputs by name, and the number of gradients.
fn compared_names(report: &Report) -> String {
    let names = report.tensors.iter().map(|tensor| tensor.tensor.as_str());
    let (gradients, mut names): (Vec<&str>, Vec<&str>) = names.partition(|name| name.starts_with("grad."));
    let count = format!("{} gradient{}", gradients.len(), if gradients.len() == 1 { "" } else { "s" });
    names.push(&count);
    names.join(", ")
}

/// The tensors that are furthest off, and whether all agree with `with`.
fn verify_text(report: &Report, with: &str) -> String {
    let mut worst: Vec<_> = report.tensors.iter().collect();
    worst.sort_by(|a, b| (b.wrong > 0).cmp(&(a.wrong > 0)).then(b.of_permitted.total_cmp(&a.of_permitted)));
    let row = |error: &partita_schedule::verify::TensorError| {
        let count = |n: usize| if n == 0 { "-".to_string() } else { n.to_string() };
        vec![
            error.tensor.clone(),
            format!("{:.1e}", error.rel_error),
            format!("{:.2}", error.of_permitted),
            count(error.wrong),
            count(error.excused),
        ]
    };
    let rows: Vec<Vec<String>> = worst.iter().take(TENSORS_SHOWN).map(|error| row(error)).collect();
    // Nothing is compared where ranks disagree among themselves.
    let header = ["tensor", "relative error", "error over tolerance", "out of tolerance", "within rounding"];
    let mut text = if rows.is_empty() { String::new() } else { table(&header, &rows) };
    if worst.len() > rows.len() {
        text += &format!("and {} more tensors, closer than these\n", worst.len() - rows.len());
    }
    if report.excused() > 0 {
        let elements = if report.excused() == 1 { "element is" } else { "elements are" };
        text += &format!(
            "{} {elements} beyond the tolerance, by no more than the rounding of the gradient explains\n",
            report.excused()
        );
    }
    if let Some(first) = &report.first_diverging {
        text += &format!("first value that differs: {first}\n");
    }
    let (count, tolerance) = (report.tensors.len(), report.tolerance);
    text += &match report.tensors.iter().filter(|tensor| tensor.wrong > 0).count() {
        _ if report.ok => {
            format!(
                "verified: {count} tensor{} with {with} within {tolerance:.0e}\n",
                if count == 1 { " agrees" } else { "s agree" }
            )
        }
        _ if count == 0 => "NOT verified: ranks disagree on what should be one value\n".to_string(),
        wrong => format!("NOT verified: {wrong} of {count} tensors differ by more than rounding explains\n"),
    };
    text
}

/// Kinds that occur, all-reduces in any case: `2 (6)` is 2 meetings that carry 6 tensors.
pub(crate) fn counts_table(counts: &Counts) -> String {
    let Counts { rank, meetings, logical, bytes: sizes } = counts;
    let phases = [
        ("forward", meetings.forward, logical.forward, sizes.forward),
        ("backward", meetings.backward, logical.backward, sizes.backward),
        ("update", meetings.update, logical.update, sizes.update),
    ];
    let names = meetings.forward.named().map(|(name, _)| name);
    let occurs = |place: &usize| *place == 0 || phases.iter().any(|(_, of, ..)| of.named()[*place].1 > 0);
    let places: Vec<usize> = (0..names.len()).filter(occurs).collect();
    let mut header = vec!["phase"];
    header.extend(places.iter().map(|&place| names[place]));
    header.push("bytes");
    let rows: Vec<Vec<String>> = phases
        .iter()
        .map(|(phase, of, logical, size)| {
            let cell = |&place: &usize| match (of.named()[place].1, logical.named()[place].1) {
                (0, _) => "-".to_string(),
                (count, tensors) if count == tensors => count.to_string(),
                (count, tensors) => format!("{count} ({tensors})"),
            };
            let mut row = vec![phase.to_string()];
            row.extend(places.iter().map(cell));
            row.push(bytes(*size));
            row
        })
        .collect();
    table(&header, &rows)
        + &format!(
            "collectives of rank {rank} in one step; in parentheses: tensors, if a collective carries several\n\
             bytes: size of the unsharded tensors, summed over the collectives\n"
        )
}

/// One row for each bucket of gradients.
fn overlap_table(overlaps: &Overlaps) -> String {
    let row = |bucket: &Bucket| {
        vec![
            bucket.kind.to_string(),
            bucket.first.clone(),
            bucket.tensors.to_string(),
            bytes(bucket.bytes),
            format!("{:.3} GFLOP", bucket.flops / 1e9),
        ]
    };
    let rows: Vec<Vec<String>> = overlaps.buckets.iter().map(row).collect();
    let header = ["gradients", "first", "tensors", "bytes", "computed meanwhile"];
    format!("{}between start and wait, on rank {}\n", table(&header, &rows), overlaps.rank)
}

#[cfg(test)]
mod tests;
