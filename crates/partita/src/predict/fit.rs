//! Constants of software, at most two for each source of measurements: the factors by which its kernels and its
//! collectives take longer than the figures of device and links say. Fitted by least mean absolute relative error, and
//! judged on rows and on whole sources that the fit did not see.

use super::block::Block;
use super::rows::Measured;
use super::step::{Forecast, Job, Priced, Software, forecast};
use partita_base::Result;
use partita_cost::Cluster;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A run with all that its prediction needs.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// What was measured.
    pub measured: &'a Measured,
    /// What is predicted.
    pub job: &'a Job,
    /// Where it ran.
    pub cluster: &'a Cluster,
    /// Its layer.
    pub block: Arc<Block>,
    /// The seconds of its pieces.
    pub priced: Priced,
}

impl Run<'_> {
    /// The prediction with these constants.
    ///
    /// # Errors
    /// Those of [`forecast`].
    pub fn forecast(&self, software: &Software) -> Result<Forecast> {
        forecast(self.job, &self.block, self.cluster, software)
    }

    /// The predicted seconds relative to the measured ones, less one; `None` if no seconds were measured.
    pub fn error(&self, software: &Software) -> Option<f64> {
        let measured = self.measured.step_s.filter(|_| !self.measured.ran_out)?;
        Some(self.priced.seconds(self.job, software).ok()?.step_s / measured - 1.0)
    }
}

/// The mean of absolute errors over runs.
fn mean(runs: &[&Run], software: &Software) -> f64 {
    let errors: Vec<f64> = runs.iter().filter_map(|run| run.error(software)).map(f64::abs).collect();
    errors.iter().sum::<f64>() / errors.len().max(1) as f64
}

/// The two constants with the least mean error: the factor of compute, and either the factor of collectives or the seconds
/// of a launch, whichever explains the runs better.
pub fn fit(runs: &[&Run]) -> Software {
    let fitted = [fit_with(runs, false), fit_with(runs, true)];
    // The second must be clearly better: ties go to the factor of collectives.
    if mean(runs, &fitted[1]) < 0.98 * mean(runs, &fitted[0]) { fitted[1] } else { fitted[0] }
}

/// The part of a step that a doubling of the number of ranks adds, in every source: between 0.3 % and 0.8 % in tables that
/// vary the number of data parallel ranks alone, which wait for each other once a step (InternEvo on 16 to 1,024, NVIDIA's
/// on 8 to 2,048).
const STRAGGLERS: f64 = 0.005;
/// What it adds beside that where these ranks gather the parameters of each layer: 1.1 % to 2.5 % in all (LLM Foundry on 128
/// to 512, NVIDIA's on 64 to 256).
const LAYER_STRAGGLERS: f64 = 0.006;

/// By turns, each constant from a list, which narrows around the best one.
fn fit_with(runs: &[&Run], launches: bool) -> Software {
    let unfitted =
        Software { stragglers: STRAGGLERS, layer_stragglers: LAYER_STRAGGLERS, ..Software::default() };
    if runs.is_empty() {
        return unfitted;
    }
    let mut best = Software { launch_s: if launches { 5e-6 } else { 0.0 }, ..unfitted };
    let mut error = mean(runs, &best);
    let mut width = 8.0f64.ln();
    for _ in 0..6 {
        for constant in 0..2 {
            let from = best;
            for step in -4..=4 {
                let scale = (width * f64::from(step) / 4.0).exp();
                let mut tried = from;
                match (constant, launches) {
                    (0, _) => tried.compute = (from.compute * scale).clamp(0.5, 3.0),
                    (_, false) => tried.communication = (from.communication * scale).clamp(0.2, 5.0),
                    (_, true) => tried.launch_s = (from.launch_s * scale).clamp(1e-7, 1e-3),
                }
                let now = mean(runs, &tried);
                if now < error - 1e-9 {
                    (best, error) = (tried, now);
                }
            }
        }
        width /= 1.8;
    }
    best
}

/// Parts into which the rows of a source are held out, one part at a time.
const PARTS: usize = 5;

/// Predictions of rows that no fit saw, by row: the constants come from the other parts of the row's source. Rows of
/// sources with a single row are left out.
pub fn held_out_rows(runs: &[Run]) -> BTreeMap<String, f64> {
    let mut errors = BTreeMap::new();
    for source in sources(runs) {
        let of: Vec<&Run> = runs
            .iter()
            .filter(|run| run.measured.source == source && run.error(&Software::default()).is_some())
            .collect();
        if of.len() < 2 {
            continue;
        }
        let parts = PARTS.min(of.len());
        for part in 0..parts {
            let seen: Vec<&Run> =
                of.iter().enumerate().filter(|(at, _)| at % parts != part).map(|(_, run)| *run).collect();
            let software = fit(&seen);
            for run in of.iter().skip(part).step_by(parts) {
                errors.extend(run.error(&software).map(|error| (run.measured.row.clone(), error)));
            }
        }
    }
    errors
}

/// Predictions of whole sources that no fit saw: the constants of all other sources together.
pub fn held_out_sources(runs: &[Run]) -> BTreeMap<String, f64> {
    let mut errors = BTreeMap::new();
    for source in sources(runs) {
        let seen: Vec<&Run> = runs.iter().filter(|run| run.measured.source != source).collect();
        let software = fit(&seen);
        for run in runs.iter().filter(|run| run.measured.source == source) {
            errors.extend(run.error(&software).map(|error| (run.measured.row.clone(), error)));
        }
    }
    errors
}

/// The sources, each once, in the order of the alphabet.
pub fn sources(runs: &[Run]) -> Vec<String> {
    let mut sources: Vec<String> = runs.iter().map(|run| run.measured.source.clone()).collect();
    sources.sort();
    sources.dedup();
    sources
}

/// The mean of absolute values, and the value that 90 % of them do not exceed; `None` of no values.
pub fn mean_and_tail(errors: impl IntoIterator<Item = f64>) -> Option<[f64; 2]> {
    let mut sizes: Vec<f64> = errors.into_iter().map(f64::abs).collect();
    sizes.sort_by(f64::total_cmp);
    let count = sizes.len();
    let tail = *sizes.get((count * 9).div_ceil(10).max(1) - 1)?;
    Some([sizes.iter().sum::<f64>() / count as f64, tail])
}

/// Spearman's correlation of ranks; `None` for fewer than two pairs or without order.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let ranks = |values: Vec<f64>| -> Vec<f64> {
        let rank = |value: f64| {
            let below = values.iter().filter(|&&other| other < value).count() as f64;
            let equal = values.iter().filter(|&&other| other == value).count() as f64;
            below + (equal - 1.0) / 2.0
        };
        values.iter().map(|&value| rank(value)).collect()
    };
    let (a, b) =
        (ranks(pairs.iter().map(|pair| pair.0).collect()), ranks(pairs.iter().map(|pair| pair.1).collect()));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - mean) * (y - mean)).sum::<f64>();
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    (pairs.len() > 1 && scale > 0.0).then(|| product(&a, &b) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spearman_compares_orders() {
        assert_eq!(spearman(&[(1.0, 10.0), (2.0, 1000.0), (3.0, 1e9)]), Some(1.0));
        assert_eq!(spearman(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), Some(-1.0));
        assert_eq!(spearman(&[(1.0, 3.0)]), None);
        // Ties share their ranks: 1 - 6 * 0.5 / 24 by Pearson over ranks 0, 1.5, 1.5, 3.
        let tied = spearman(&[(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (3.0, 4.0)]).unwrap();
        assert!((tied - 4.5 / (4.5f64 * 5.0).sqrt()).abs() < 1e-12, "{tied}");
    }

    #[test]
    fn the_tail_is_the_ninth_of_ten() {
        let [mean, tail] = mean_and_tail((1..=10).map(|n| -f64::from(n))).unwrap();
        assert_eq!(mean_and_tail([]), None);
        assert_eq!((mean, tail), (5.5, 9.0));
    }
}
