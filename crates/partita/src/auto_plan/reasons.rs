//! What a search says of the choices that not every model needs: axes for experts and long rows, host memory, and values
//! that are computed again.

use super::{AutoPlan, Candidate};
use partita_base::format_bytes;
use partita_mesh::Mesh;

/// The choices, each with what it does.
const CHOICES: [(&str, &str); 5] = [
    ("slices", "stages are on slices of different sizes"),
    ("ep", "ranks share the experts of a layer"),
    ("cp", "ranks share the tokens of a row"),
    ("offload", "optimizer states are in host memory"),
    ("activation limit", "values are computed again beyond so many bytes"),
];

impl Candidate {
    /// Whether an axis of the mesh with this name has several ranks, stages are on slices of different sizes (`slices`),
    /// optimizer states are in host memory (`offload`), or the bytes that are kept for the backward pass are limited
    /// (`activation limit`).
    pub(super) fn has(&self, choice: &str) -> bool {
        match choice {
            "slices" => self.has_slices(),
            "offload" => self.offloads(),
            "activation limit" => self.activation_limit.is_some(),
            axis => self.mesh.axis_named(axis).is_some_and(|axis| axis.size > 1),
        }
    }

    /// The mesh, those of its stages if they differ, and the microbatches.
    fn place(&self) -> String {
        let plural = if self.microbatches == 1 { "" } else { "es" };
        let slices: Vec<String> = self.slices.iter().map(Mesh::to_string).collect();
        let slices = if self.has_slices() { format!(" ({})", slices.join(" | ")) } else { String::new() };
        format!("{}{slices} with {} microbatch{plural}", self.mesh, self.microbatches)
    }

    /// How long the ranks of each stage compute: `74 % and 61 %`.
    fn busy_shares(&self) -> String {
        let shares: Vec<String> = self.busy.iter().map(|share| format!("{:.0} %", 100.0 * share)).collect();
        match shares.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

impl AutoPlan {
    /// What the axes of the best plan beyond `pp`, `dp`, `fsdp` and `tp`, and host memory, gain over the best candidate
    /// without each; and of those that were tried in vain, what they would cost, or by how much the smallest candidate is
    /// too large. Nothing of a choice that all candidates have, or none.
    pub fn reasons(&self) -> Vec<String> {
        let reasons = CHOICES.iter().filter_map(|&(choice, what)| self.reason(choice, what));
        self.told.iter().cloned().chain(reasons).collect()
    }

    fn reason(&self, choice: &str, what: &str) -> Option<String> {
        let pays = self.best.has(choice);
        let others: Vec<&Candidate> = self.others.iter().filter(|other| other.has(choice) != pays).collect();
        let with = if pays { "without" } else { "with" };
        if let Some(other) = others.iter().find(|other| other.fits() && other.idle.is_none()) {
            let factor = other.step_s / self.best.step_s.max(f64::MIN_POSITIVE);
            let verdict = if pays { "pays" } else { "does not pay" };
            // Stages of which some wait for others lose by that.
            let why = match choice == "slices" && !other.busy.is_empty() && !self.best.busy.is_empty() {
                true => format!(
                    ", where the ranks of each stage compute {} of the time, and in the chosen plan {}",
                    other.busy_shares(),
                    self.best.busy_shares()
                ),
                false => String::new(),
            };
            return Some(format!(
                "{choice} ({what}) {verdict}: {with} it, the best candidate that was priced, {}, takes {factor:.2} times as \
                 long{why}",
                other.place()
            ));
        }
        let verdict = if pays { "is needed" } else { "does not help" };
        let smallest = others.iter().filter(|other| !other.fits()).min_by_key(|other| other.fill().missing());
        let Some(smallest) = smallest else {
            // All candidates that fit repeat work.
            let other = others.first()?;
            let axis = other.idle.as_deref().unwrap_or_default();
            return Some(format!(
                "{choice} ({what}) {verdict}: {with} it, ranks of `{axis}` share no work on {}",
                other.mesh
            ));
        };
        let tried = match others.len() {
            1 => format!("the one candidate {with} it"),
            count => format!("none of the {count} candidates {with} it that were priced fits; the smallest"),
        };
        Some(format!(
            "{choice} ({what}) {verdict}: {tried}, {}, needs {}, {} more than a device has",
            smallest.place(),
            format_bytes(smallest.bytes),
            format_bytes(smallest.fill().missing())
        ))
    }
}
