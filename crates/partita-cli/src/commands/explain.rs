//! `partita explain`: why a step is as it is, what something else would cost, and the pages of codes.

use crate::command::{Application, Command, ConfigFlags, OF_A_STEP, Unread, of_no_run};
use crate::output::events::{Counts, Event};
use crate::output::format::{bytes, table};
use crate::output::{Output, counts_table};
use crate::run::{Ending, answer, session};
use clap::Args;
use partita::execution;
use partita::session::Session;
use partita::stage_table::{StageRow, part_name, stage_table};
use partita_base::{Diagnostic, Result, did_you_mean};
use partita_import::stablehlo::dotted;
use partita_ir::{Graph, Registry};
use partita_mesh::rank_list;
use partita_program::{EdgeCounts, ProgramSet, edge_counts};
use partita_schedule::explain::{Choice, Collective, Explain, Line, Over, Subject, Tensor, lines};
use partita_schedule::{BuildContext, Built, restructure};
use serde::Serialize;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// A page of a code reads no key.
const OF_PAGE: Unread = of_no_run(&[("", "the page of a code has no config")]);

/// Flags of `explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    /// A config, as for other commands; or the code of a message.
    pub config: String,
    /// A parameter, a module (its output), `module.input`, a collective such as all_reduce:3, or a code.
    pub name: Option<String>,
    /// The rank whose collectives are counted.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "name")]
    pub rank: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub flags: ConfigFlags,
}

impl ExplainArgs {
    /// The code of a message, if the name is one.
    pub fn code(&self) -> Option<&str> {
        let asked = self.name.as_ref().unwrap_or(&self.config);
        is_code(asked).then_some(asked)
    }
}

impl Command for ExplainArgs {
    const NAME: &'static str = "explain";
    const ABOUT: &'static str =
        "Explain a step: its plan and collectives, the layout of a tensor, or a code such as E231";
    const UNREAD: Unread = OF_A_STEP;

    fn flags(&self) -> Option<(&ConfigFlags, Unread)> {
        Some((&self.flags, self.code().map_or(Self::UNREAD, |_| OF_PAGE)))
    }

    fn run(&self, _: &Application, output: &mut Output) -> Result<Ending> {
        match self.code() {
            Some(code) => answer(&page(code)?, |page| page.text(), output),
            None => explain(self, &session(&self.config, self.flags.overrides()?, output)?, output)?,
        }
        Ok(Ending::Done)
    }
}

/// All codes, a table for each group, sections with examples below.
const PAGES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ERRORS.md"));

/// The page of a code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Page {
    /// `E231`.
    pub code: String,
    /// The crates that report it.
    pub crates: String,
    /// What it means, in a sentence.
    pub meaning: String,
    /// What it means, an example and what to do, in Markdown; empty where the sentence says it all.
    pub text: String,
}

impl Event for Page {
    const NAME: &'static str = "explain";
}

/// A step on one screen.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Overview {
    /// The mesh.
    pub mesh: String,
    /// The cluster that costs are those of.
    pub cluster: String,
    /// What each line of the plan did.
    pub lines: Vec<Line>,
    /// The collectives of a rank, counted.
    pub counts: Counts,
    /// The collectives of the first rank of each stage, with the lines they come from.
    pub collectives: Vec<Collective>,
    /// The slices of a pipeline with their stages; empty without one.
    pub stages: Vec<StageRow>,
    /// What the text calls them.
    #[serde(skip)]
    part: &'static str,
    /// What the text says of sends between stages, which no line of a plan causes.
    #[serde(skip)]
    edges: EdgeCounts,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Event for Overview {
    const NAME: &'static str = "explain";
}

/// A value or a collective, and what else it might be.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Answer {
    /// The tensor or collective.
    #[serde(flatten)]
    pub subject: Subject,
    /// The cluster that costs are those of.
    pub cluster: String,
    /// Its other layouts, tried one by one; first the present one of each axis.
    pub choices: Vec<Choice>,
}

impl Event for Answer {
    const NAME: &'static str = "explain";
}

/// How often a long search reports its progress.
const REPORT_EVERY: Duration = Duration::from_secs(2);

/// Runs the command for a step: the whole of it, or a name in it.
///
/// # Errors
/// What building refuses, E257 and E258 for a name that the step does not have.
fn explain(args: &ExplainArgs, session: &Session, output: &mut Output) -> Result<()> {
    let explained = output.during("planning the step", || Explained::of(session))?;
    let Some(name) = &args.name else {
        let overview = output.during("lowering the step", || explained.overview(session, args.rank))?;
        answer(&overview, Overview::text, output);
        return Ok(());
    };
    let mut last = Instant::now();
    let found = explained.about(&dotted(name), &mut |done, total| {
        if last.elapsed() >= REPORT_EVERY {
            last = Instant::now();
            output.waiting(&format!("tried {done} of {total} other layouts"));
        }
    })?;
    answer(&found, Answer::text, output);
    Ok(())
}

/// Whether a name is a code, whether there is such a code or not: `E231`, `e231`.
pub fn is_code(name: &str) -> bool {
    let digits = name.strip_prefix(['E', 'e']).unwrap_or("");
    digits.len() >= 3 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The page of a code. E016 when no diagnostic has it.
pub fn page(code: &str) -> Result<Page> {
    let code = code.to_uppercase();
    let rows: Vec<Vec<&str>> = PAGES
        .lines()
        .filter(|line| line.starts_with("| E"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let Some(row) = rows.iter().find(|row| row[0] == code) else {
        let mut error = Diagnostic::new("E016", format!("no message has the code {code}"))
            .expected("a code of docs/ERRORS.md")
            .found(code.clone());
        error.help = did_you_mean(&code, rows.iter().map(|row| row[0]));
        return Err(error);
    };
    let heading = format!("### {code} ");
    let section = PAGES.lines().skip_while(|line| !line.starts_with(&heading)).skip(1);
    // A heading ends the section, but not the `#` of a comment in an example.
    let ends = |line: &&str| ["## ", "### "].iter().all(|heading| !line.starts_with(heading));
    let text = section.take_while(ends).collect::<Vec<&str>>().join("\n").trim().to_string();
    Ok(Page { code, crates: row[1].to_string(), meaning: row[2].to_string(), text })
}

impl Page {
    /// The page for people.
    pub fn text(&self) -> String {
        let head = format!("{} ({}): {}\n", self.code, self.crates, self.meaning);
        if self.text.is_empty() { head } else { format!("{head}\n{}\n", self.text) }
    }
}

/// A step to be asked about: built, and the model's forward graph after the structural lines of its plan.
pub struct Explained {
    built: Built,
    forward: Graph,
    notes: Vec<String>,
}

impl Explained {
    /// The planned step of a session.
    pub fn of(session: &Session) -> Result<Explained> {
        let model = session.model()?;
        let built = session.build_model(&model)?;
        let context = BuildContext { registry: &Registry::default(), runner: &session.step_runner() };
        let forward = restructure(&built.plan, &model, &context)?.model.forward;
        let notes = session.notes(&model, &built);
        Ok(Explained::new(built, forward, notes))
    }

    /// A built step with the forward graph that its structural lines leave, and notes for the user.
    pub fn new(built: Built, forward: Graph, notes: Vec<String>) -> Explained {
        Explained { built, forward, notes }
    }

    /// The name of the cluster that the step is planned for.
    fn cluster(&self) -> String {
        self.built.stages[0].partitioned.cluster.name.clone()
    }

    /// The whole step, with the counts of a rank. E014 if the rank does not exist.
    pub fn overview(&self, session: &Session, rank: usize) -> Result<Overview> {
        self.overview_of(&session.lower(&self.built)?, rank)
    }

    /// The whole step, with the counts of a rank of its programs. E014 if the rank does not exist.
    pub fn overview_of(&self, programs: &ProgramSet, rank: usize) -> Result<Overview> {
        let explained = (0..self.built.stages.len()).map(|stage| Explain::new(&self.built, stage));
        let explained: Vec<Explain> = explained.collect();
        Ok(Overview {
            mesh: self.built.mesh.to_string(),
            cluster: self.cluster(),
            lines: lines(&self.built, &self.forward),
            counts: Counts::of_rank(programs, rank)?,
            collectives: explained.iter().flat_map(Explain::collectives).collect(),
            stages: stage_table(&self.built),
            part: part_name(&self.built),
            edges: edge_counts(&execution::stages(&self.built)),
            notes: self.notes.clone(),
        })
    }

    /// The tensor or collective of this name, and its other layouts; `progress` receives how many of them were tried, and
    /// their number. E257 and E258 for a name that the step does not have.
    pub fn about(&self, name: &str, progress: &mut dyn FnMut(usize, usize)) -> Result<Answer> {
        let mut refused = None;
        for stage in 0..self.built.stages.len() {
            let explain = Explain::new(&self.built, stage);
            match explain.subject(name) {
                Ok(subject) => {
                    let choices = explain.choices(&subject, progress);
                    return Ok(Answer { subject, cluster: self.cluster(), choices });
                }
                Err(error) => _ = refused.get_or_insert(error),
            }
        }
        Err(refused.expect("a step has a stage"))
    }
}

impl Overview {
    /// One screen.
    pub fn text(&self) -> String {
        let mut text = format!("mesh {}\n\nplan\n", self.mesh);
        if self.lines.is_empty() {
            text += "  no lines: only the batch is sharded\n";
        }
        for line in &self.lines {
            let origin = if line.origin.is_empty() { String::new() } else { format!("  ({})", line.origin) };
            let _ = writeln!(text, "  {}{origin}\n      {}", line.line, effects(line));
        }
        for row in &self.stages {
            let StageRow { stage: number, stages, mesh, modules, because, .. } = row;
            let end = match (modules.last(), because.is_empty(), stages.len()) {
                (_, true, 0 | 1) => String::new(),
                (_, true, _) => format!(", stages {}", rank_list(stages)),
                (Some(last), false, 1) => format!(", ends after {last} ({because})"),
                (_, false, _) => format!(", stages {} ({because})", rank_list(stages)),
            };
            let begin = if *number == 0 { "\n" } else { "" };
            let (part, ranks) = (self.part, rank_list(&row.ranks));
            let _ = writeln!(text, "{begin}{part} {number} on {mesh}, ranks {ranks}{end}");
        }
        let _ = write!(text, "\n{}\n", counts_table(&self.counts));
        text += &because(&self.collectives, self.edges.rows.is_empty());
        if !self.edges.rows.is_empty() {
            let _ = write!(
                text,
                "\nsends between stages, which follow from where the stages end\n{}",
                self.edges
            );
        }
        for note in &self.notes {
            let _ = write!(text, "\nnote: {note}");
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text
    }
}

/// What a line did, in words.
fn effects(line: &Line) -> String {
    let some = |count: usize, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {many}")),
    };
    let pinned: Vec<String> = [
        some(line.parameters, "parameter", "parameters"),
        some(line.states, "optimizer state", "optimizer states"),
        some(line.gradients, "gradient", "gradients"),
        some(line.activations, "activation", "activations"),
        some(line.reads, "place that reads", "places that read"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let parts: Vec<String> = [
        (!pinned.is_empty()).then(|| format!("lays out {}", pinned.join(", "))),
        (line.recomputed_bytes > 0)
            .then(|| format!("{} not kept on a rank", bytes(line.recomputed_bytes as u64))),
        some(line.composites, "composite", "composites"),
        some(line.stages, "pipeline stage ends", "pipeline stages end"),
        some(line.annotations, "note on a parameter", "notes on parameters"),
        line.note.clone(),
    ]
    .into_iter()
    .flatten()
    .collect();
    match parts.is_empty() {
        true => some(line.modules, "module", "modules").unwrap_or_else(|| "nothing".to_string()),
        false => parts.join("; "),
    }
}

/// Collectives by the line they come from, those of one kind and phase in one row. `are_all` says that there are no others.
fn because(collectives: &[Collective], are_all: bool) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut groups: Vec<(&Collective, Vec<usize>, usize)> = Vec::new();
    for collective in collectives {
        if !lines.contains(&collective.because.as_str()) {
            lines.push(&collective.because);
        }
        let number = collective.name.rsplit(':').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        let alike = |first: &Collective| {
            (&first.kind, &first.phase, &first.because)
                == (&collective.kind, &collective.phase, &collective.because)
        };
        match groups.iter_mut().find(|(first, ..)| alike(first)) {
            Some((_, numbers, total)) => {
                numbers.push(number);
                *total += collective.bytes;
            }
            None => groups.push((collective, vec![number], collective.bytes)),
        }
    }
    let row = |(first, numbers, total): &(&Collective, Vec<usize>, usize)| {
        format!("      {}:{}, {}, {}\n", first.kind, ranges(numbers), first.phase, bytes(*total as u64))
    };
    let mut text = match (lines.is_empty(), are_all) {
        (false, _) => "collectives, by the line that causes them\n",
        (true, true) => "no collectives\n",
        (true, false) => "no collectives within a stage\n",
    }
    .to_string();
    for line in lines {
        let _ = writeln!(text, "  {}", if line.is_empty() { "no line" } else { line });
        text.extend(groups.iter().filter(|(first, ..)| first.because == line).map(row));
    }
    text
}

/// `1-3,5`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

impl Answer {
    /// The facts for people.
    pub fn text(&self) -> String {
        let mut text = match &self.subject {
            Subject::Tensor(tensor) => tensor_text(tensor),
            Subject::Collective(collective) => collective_text(collective, &self.cluster),
        };
        if !self.choices.is_empty() {
            text += "\nother layouts, the rest of the plan as it is\n";
            text += &table(
                &["over", "layout", "bytes moved", "difference", "parameters", "difference"],
                &self.choices.iter().map(choice_row).collect::<Vec<_>>(),
            );
            text +=
                "bytes moved: full tensors a rank takes part with in a step; parameters: bytes on a rank\n";
        }
        text
    }
}

fn choice_row(choice: &Choice) -> Vec<String> {
    let mut row = vec![choice.axis.clone(), choice.layout.clone()];
    let signed = |more: i64| format!("{more:+}");
    match (&choice.refused, choice.present) {
        (Some(why), _) => row.push(format!("refused: {why}")),
        (None, true) => row.extend([
            choice.moved_bytes.to_string(),
            "now".into(),
            choice.parameter_bytes.to_string(),
            "now".into(),
        ]),
        (None, false) => row.extend([
            choice.moved_bytes.to_string(),
            signed(choice.more_moved_bytes),
            choice.parameter_bytes.to_string(),
            signed(choice.more_parameter_bytes),
        ]),
    }
    row
}

fn tensor_text(tensor: &Tensor) -> String {
    let Tensor { name, role, dtype, shape, layout, .. } = tensor;
    let mut text = format!("{name}: {role}, {dtype} {shape:?}, {} bytes\n", tensor.bytes);
    if tensor.value != *name {
        let _ = writeln!(text, "  value   {}", tensor.value);
    }
    if tensor.tensors > 1 {
        let _ = writeln!(text, "  first of {} tensors of this name", tensor.tensors);
    }
    let _ = writeln!(text, "  layout  {layout}");
    if let Some(computed) = &tensor.computed {
        let _ = writeln!(text, "  made as {computed}");
    }
    for held in &tensor.held {
        let ranks: Vec<String> = held.ranks.iter().map(|rank| rank.to_string()).collect();
        let what = if ranks.len() == 1 { "rank " } else { "ranks" };
        let _ = writeln!(text, "  {what}   {}: {:?}, {} bytes each", ranks.join(","), held.shape, held.bytes);
    }
    for Over { axis, dim, chain } in &tensor.over {
        let how = dim.map_or("replicated".to_string(), |dim| format!("dimension {dim} is sharded"));
        let _ = write!(text, "\nwhy, over {axis}: {how}\n{}", numbered(chain));
    }
    text
}

fn collective_text(collective: &Collective, cluster: &str) -> String {
    let Collective { name, phase, module, value, tensor, before, after, bytes, cost_us, chain, .. } =
        collective;
    let module = if module.is_empty() { "the model" } else { module };
    format!(
        "{name}: in {module}, {phase}\n  value   {value}, {tensor}\n  from    {before}\n  to      {after}\n  bytes   \
         {bytes} on a rank\n  cost    {cost_us:.1} us, by cluster `{cluster}`\n\nwhy\n{}",
        numbered(chain)
    )
}

fn numbered(links: &[String]) -> String {
    links.iter().enumerate().map(|(place, link)| format!("  {}. {link}\n", place + 1)).collect()
}
