//! `train --live`: a view of the run on a terminal, drawn in place after a step.
//!
//! The view is a function from figures to lines, [`Live::lines`]. It is drawn with two control sequences of ECMA-48: cursor
//! up, and erase to the end of the screen; so what was printed before stays above it.

use super::events::{Step, Validation};
use super::format::{bytes, duration, number, short, unit};
use partita_program::Action;
use partita_runtime::Runner;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The view is drawn at most so often.
const EVERY: Duration = Duration::from_millis(100);
/// Ranks that are shown.
const RANKS_SHOWN: usize = 16;
/// Letters of a bar.
const BAR: usize = 24;
/// The eighths of a letter's height, from below.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The letters of a curve.
const CURVE: usize = 32;

/// What a rank did in a step, and its memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RankState {
    /// Its number.
    pub rank: usize,
    /// The part of the step in which it computed; `None` if that is not recorded. Several threads add up.
    pub computes: Option<f64>,
    /// The part in which it looked for data that was not there yet.
    pub waits: Option<f64>,
    /// Bytes of memory in use.
    pub bytes: u64,
}

/// The ranks of this process after a step.
pub fn rank_states(runner: &Runner) -> Vec<RankState> {
    let (mut begin, mut end) = (u64::MAX, 0);
    let ranks = runner.local_ranks();
    let mut nanos = vec![[0u64; 2]; ranks.len()];
    for event in runner.events() {
        (begin, end) = (begin.min(event.begin_ns), end.max(event.end_ns));
        let Ok(place) = ranks.binary_search(&event.rank) else { continue };
        match runner.programs()[place].instructions[event.instruction].action {
            Action::Compute(_) => nanos[place][0] += event.nanos(),
            _ => nanos[place][1] += event.nanos(),
        }
    }
    let share = |ns: u64| (end > begin).then(|| ns as f64 / (end - begin) as f64);
    let state = |((&rank, used), [computes, waits]): ((&usize, usize), [u64; 2])| RankState {
        rank,
        computes: share(computes),
        waits: share(waits),
        bytes: used as u64,
    };
    ranks.iter().zip(runner.peak_bytes_used()).zip(nanos).map(state).collect()
}

/// The view.
pub struct Live {
    title: String,
    first: u64,
    total: u64,
    begun: Instant,
    drawn: Option<Instant>,
    /// Lines on the screen that the next drawing replaces.
    height: usize,
    step: Option<Step>,
    validation: Option<Validation>,
    losses: Vec<f64>,
    speeds: Vec<f64>,
    ranks: Vec<RankState>,
    /// What other threads have to say, such as that the run is stopping.
    message: Message,
}

/// A line that another thread may write below the view.
pub type Message = Arc<Mutex<String>>;

impl Live {
    /// A view under a title, before the first step.
    pub fn new(title: &str) -> Live {
        Live {
            title: title.to_string(),
            first: 1,
            total: 0,
            begun: Instant::now(),
            drawn: None,
            height: 0,
            step: None,
            validation: None,
            losses: Vec::new(),
            speeds: Vec::new(),
            ranks: Vec::new(),
            message: Message::default(),
        }
    }

    /// The line below the view.
    pub fn message(&self) -> Message {
        self.message.clone()
    }

    /// The first step to be done, and the last.
    pub fn begin(&mut self, first: u64, total: u64) {
        (self.first, self.total, self.begun) = (first, total, Instant::now());
    }

    /// A step is done.
    pub fn step(&mut self, step: &Step) {
        self.step = Some(*step);
        for (values, value) in [(&mut self.losses, step.loss), (&mut self.speeds, step.tokens_per_s)] {
            values.push(value);
        }
    }

    /// A validation is done.
    pub fn validation(&mut self, validation: &Validation) {
        self.validation = Some(*validation);
    }

    /// What ranks did in the step that is done.
    pub fn ranks(&mut self, ranks: Vec<RankState>) {
        self.ranks = ranks;
    }

    /// Whether it is time to draw again.
    pub fn is_due(&self) -> bool {
        let is_last = self.step.is_some_and(|step| step.step + 1 >= self.total);
        is_last || self.drawn.is_none_or(|at| at.elapsed() >= EVERY)
    }

    /// What to print to draw the view in place of the last one, on a terminal of this size.
    pub fn drawing(&mut self, columns: usize, rows: usize) -> String {
        self.drawn = Some(Instant::now());
        let mut lines = self.lines(columns, self.begun.elapsed().as_secs_f64());
        // The cursor cannot move to lines that have left the screen.
        lines.truncate(rows.saturating_sub(1).max(1));
        let text = self.erasing() + &lines.join("\n") + "\n";
        self.height = lines.len();
        text
    }

    /// What to print to remove the view.
    pub fn erasing(&mut self) -> String {
        match std::mem::take(&mut self.height) {
            0 => String::new(),
            height => format!("\x1b[{height}A\r\x1b[J"),
        }
    }

    /// The view as lines of at most so many columns, after so many seconds.
    pub fn lines(&self, columns: usize, elapsed_s: f64) -> Vec<String> {
        let done = self.step.map_or(self.first.saturating_sub(1), |step| step.step);
        let steps = format!("step {done}/{}", self.total);
        let space = columns.saturating_sub(self.title.chars().count() + steps.len()).max(2);
        let mut lines = vec![format!("{}{}{steps}", self.title, " ".repeat(space))];
        let share = done as f64 / self.total.max(1) as f64;
        let here = (done + 1).saturating_sub(self.first);
        let left_s = elapsed_s / here.max(1) as f64 * self.total.saturating_sub(done) as f64;
        let left = if here > 0 { format!(", {} left", duration(left_s)) } else { String::new() };
        let bar = bar(&[('█', share), ('░', 1.0)]);
        lines.push(format!("{bar} {:>3.0} %  {} elapsed{left}", 100.0 * share, duration(elapsed_s)));
        if let Some(step) = &self.step {
            lines.push(format!("loss        {:>10}  {}", number(step.loss), curve(&self.losses)));
            if let Some(Validation { step, loss }) = &self.validation {
                lines.push(format!("validation  {:>10}  after step {step}", number(*loss)));
            }
            let unit = unit(step.rows_per_s, step.tokens_per_s);
            lines.push(format!("{unit:<12}{:>10}  {}", short(step.tokens_per_s), curve(&self.speeds)));
            let used = step.peak_bytes_used.map_or(String::new(), |used| format!("  {} used", bytes(used)));
            lines.push(format!("memory      {:>10}  planned{used}", bytes(step.peak_bytes_planned)));
        }
        let number_width = self.ranks.last().map_or(0, |state| state.rank.to_string().len());
        for state in self.ranks.iter().take(RANKS_SHOWN) {
            let did = match (state.computes, state.waits) {
                (Some(computes), Some(waits)) => format!(
                    "  {}  computes {:>3.0} %  waits {:>3.0} %",
                    self::bar(&[('█', computes), ('░', waits), (' ', 1.0)]),
                    100.0 * computes,
                    100.0 * waits
                ),
                _ => String::new(),
            };
            lines.push(format!("rank {:>number_width$}{did}  {:>10}", state.rank, bytes(state.bytes)));
        }
        if let more @ 1.. = self.ranks.len().saturating_sub(RANKS_SHOWN) {
            lines.push(format!("and {more} more ranks"));
        }
        let message = self.message.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lines.extend((!message.is_empty()).then_some(message));
        let cut = |line: String| line.chars().take(columns.max(1)).collect::<String>().trim_end().to_string();
        lines.into_iter().map(cut).collect()
    }
}

/// A bar of letters, each for its part of the whole, as far as there is room.
fn bar(parts: &[(char, f64)]) -> String {
    let (mut text, mut sum) = (String::new(), 0.0);
    for &(letter, part) in parts {
        sum += part;
        let until = ((sum * BAR as f64).round() as usize).min(BAR);
        text.extend(std::iter::repeat_n(letter, until.saturating_sub(text.chars().count())));
    }
    text
}

/// The last values as heights between their smallest and largest; what is not finite is a space.
fn curve(values: &[f64]) -> String {
    let shown = &values[values.len().saturating_sub(CURVE)..];
    let finite = || shown.iter().copied().filter(|value| value.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let letter = |&value: &f64| match value.is_finite() {
        true => {
            let height = (value - low) / (high - low).max(f64::MIN_POSITIVE);
            HEIGHTS[((height * 7.0).round() as usize).min(7)]
        }
        false => ' ',
    };
    shown.iter().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64, tokens_per_s: f64) -> Step {
        Step {
            step,
            loss,
            grad_norm: None,
            loss_scale: None,
            skipped_steps: None,
            rows_per_s: tokens_per_s / 64.0,
            tokens_per_s,
            peak_bytes_planned: 3 << 20,
            peak_bytes_used: Some(2 << 20),
            learning_rate: 1e-3,
        }
    }

    fn view() -> Live {
        let mut live = Live::new("gpt on mesh dp=2");
        live.begin(1, 8);
        for (number, loss) in [(1, 5.0), (2, 4.0), (3, f64::NAN), (4, 1.5)] {
            live.step(&step(number, loss, 1000.0 * number as f64));
        }
        live.validation(&Validation { step: 2, loss: 3.25 });
        let state = |rank, computes, waits| RankState { rank, computes, waits, bytes: 1 << 20 };
        live.ranks(vec![
            state(0, Some(0.75), Some(0.125)),
            state(1, Some(0.5), Some(0.5)),
            state(2, None, None),
        ]);
        live
    }

    #[test]
    fn the_view_has_figures_curves_and_what_ranks_do() {
        let expected = "\
gpt on mesh dp=2                                                        step 4/8
████████████░░░░░░░░░░░░  50 %  4.0 s elapsed, 4.0 s left
loss            1.5000  █▆ ▁
validation      3.2500  after step 2
tokens/s          4.0k  ▁▃▆█
memory         3.0 MiB  planned  2.0 MiB used
rank 0  ██████████████████░░░     computes  75 %  waits  12 %     1.0 MiB
rank 1  ████████████░░░░░░░░░░░░  computes  50 %  waits  50 %     1.0 MiB
rank 2     1.0 MiB";
        assert_eq!(view().lines(80, 4.0).join("\n"), expected);
    }

    #[test]
    fn it_is_drawn_in_place_and_never_wider_or_higher_than_the_terminal() {
        let mut live = view();
        let first = live.drawing(30, 6);
        assert_eq!(first.lines().count(), 5);
        assert!(first.lines().all(|line| line.chars().count() <= 30), "{first}");
        assert!(live.drawing(80, 50).starts_with("\x1b[5A\r\x1b[J"), "five lines are replaced");
        assert_eq!(live.erasing(), "\x1b[9A\r\x1b[J");
        assert_eq!(live.erasing(), "");
    }

    #[test]
    fn many_ranks_are_counted_and_a_run_that_has_not_begun_is_shown() {
        let mut live = Live::new("mlp");
        live.begin(5, 10);
        let state = |rank| RankState { rank, computes: None, waits: None, bytes: 0 };
        live.ranks((0..20).map(state).collect());
        let lines = live.lines(40, 0.0);
        assert_eq!(lines[0], "mlp                            step 4/10");
        assert!(!lines[1].contains("left"), "{lines:?}");
        assert_eq!(lines.last().unwrap(), "and 4 more ranks");
        *live.message().lock().unwrap() = "stopping after this step".to_string();
        assert_eq!(live.lines(40, 0.0).last().unwrap(), "stopping after this step");
    }
}
