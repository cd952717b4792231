//! What a search says of the choices that not every model needs: axes for experts and long rows, host memory, and values
//! that are computed again.

use super::{AutoPlan, Candidate};
use partita_base::format_bytes;

/// The choices, each with what it does.
const CHOICES: [(&str, &str); 4] = [
    ("ep", "ranks share the experts of a layer"),
    ("cp", "ranks share the tokens of a row"),
    ("offload", "optimizer states are in host memory"),
    ("activation limit", "values are computed again beyond so many bytes"),
];

impl Candidate {
    /// Whether an axis of the mesh with this name has several ranks, optimizer states are in host memory (`offload`), or the
    /// bytes that are kept for the backward pass are limited (`activation limit`).
    pub(super) fn has(&self, choice: &str) -> bool {
        match choice {
            "offload" => self.offloads(),
            "activation limit" => self.activation_limit.is_some(),
            axis => self.mesh.axis_named(axis).is_some_and(|axis| axis.size > 1),
        }
    }

    /// The mesh and the microbatches.
    fn place(&self) -> String {
        let plural = if self.microbatches == 1 { "" } else { "es" };
        format!("{} with {} microbatch{plural}", self.mesh, self.microbatches)
    }
}

impl AutoPlan {
    /// What the axes of the best plan beyond `pp`, `dp`, `fsdp` and `tp`, and host memory, gain over the best candidate
    /// without each; and of those that were tried in vain, what they would cost, or by how much the smallest candidate is
    /// too large. Nothing of a choice that all candidates have, or none.
    pub fn reasons(&self) -> Vec<String> {
        CHOICES.iter().filter_map(|&(choice, what)| self.reason(choice, what)).collect()
    }

    fn reason(&self, choice: &str, what: &str) -> Option<String> {
        let pays = self.best.has(choice);
        let others: Vec<&Candidate> = self.others.iter().filter(|other| other.has(choice) != pays).collect();
        let with = if pays { "without" } else { "with" };
        if let Some(other) = others.iter().find(|other| other.fits() && other.idle.is_none()) {
            let factor = other.step_s / self.best.step_s.max(f64::MIN_POSITIVE);
            let verdict = if pays { "pays" } else { "does not pay" };
            return Some(format!(
                "{choice} ({what}) {verdict}: {with} it, the best candidate that was priced, {}, takes {factor:.2} times as \
                 long",
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
