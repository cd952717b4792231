//! The numbers between the scores of an attention and its gradients, as sums of products of a few known quantities.
//!
//! With scores S, of one row: `E = exp(S - max S)`, `Z = sum E`, so that the weights are `P = E / Z`; the gradient of the
//! weights `G = dO V^T`, and `D = sum(P G)`. All that differentiating a softmax gives is a sum of terms
//! `c * E^e * Z^z * G^g * D^d`: whichever way a framework writes it, the gradient of the scores is `E G / Z - E D / Z`.

use std::collections::BTreeMap;

/// The exponents of a term.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Term {
    /// Of the exponentials, one for each score.
    e: i8,
    /// Of their sums, one for each row.
    z: i8,
    /// Of the gradients of the weights, one for each score.
    g: i8,
    /// Of the sums of weights times their gradients, one for each row.
    d: i8,
}

/// A sum of terms with their coefficients, none of which is 0. Without terms it is 0.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Terms(BTreeMap<Term, f64>);

/// What remains of a sum, relative to its largest summand, that counts as 0: f32 rounds the constants of a program.
const ROUNDING: f64 = 1e-6;

impl Terms {
    fn one(term: Term) -> Terms {
        Terms(BTreeMap::from([(term, 1.0)]))
    }

    /// `E`.
    pub fn exponentials() -> Terms {
        Terms::one(Term { e: 1, ..Term::default() })
    }

    /// `E / Z`.
    pub fn weights() -> Terms {
        Terms::one(Term { e: 1, z: -1, ..Term::default() })
    }

    /// `G`.
    pub fn gradients_of_weights() -> Terms {
        Terms::one(Term { g: 1, ..Term::default() })
    }

    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all terms are 0 where the exponentials are.
    pub fn vanishes_with_exponentials(&self) -> bool {
        self.0.keys().all(|term| term.e > 0)
    }

    pub fn is_weights(&self) -> bool {
        *self == Terms::weights()
    }

    /// The factor `c` of `c * (E G / Z - E D / Z)`, if these are the gradients of scores.
    pub fn gradients_of_scores(&self) -> Option<f64> {
        let product = Term { e: 1, z: -1, g: 1, d: 0 };
        let mean = Term { e: 1, z: -1, g: 0, d: 1 };
        let (&first, &second) = (self.0.get(&product)?, self.0.get(&mean)?);
        (self.0.len() == 2 && (first + second).abs() <= ROUNDING * first.abs()).then_some(first)
    }

    pub fn scaled(&self, factor: f64) -> Terms {
        match factor {
            0.0 => Terms::default(),
            _ => Terms(self.0.iter().map(|(&term, &own)| (term, own * factor)).collect()),
        }
    }

    pub fn plus(&self, other: &Terms) -> Terms {
        let mut sum = self.clone();
        for (&term, &addend) in &other.0 {
            let own = sum.0.get(&term).copied().unwrap_or(0.0);
            let total = own + addend;
            if total.abs() <= ROUNDING * own.abs().max(addend.abs()) {
                sum.0.remove(&term);
            } else {
                sum.0.insert(term, total);
            }
        }
        sum
    }

    pub fn times(&self, other: &Terms) -> Option<Terms> {
        let mut sum = Terms::default();
        for (a, x) in &self.0 {
            for (b, y) in &other.0 {
                let term = Term {
                    e: a.e.checked_add(b.e)?,
                    z: a.z.checked_add(b.z)?,
                    g: a.g.checked_add(b.g)?,
                    d: a.d.checked_add(b.d)?,
                };
                sum = sum.plus(&Terms(BTreeMap::from([(term, x * y)])));
            }
        }
        Some(sum)
    }

    /// One over a power of the sums of exponentials, which are nowhere 0.
    pub fn inverse(&self) -> Option<Terms> {
        let (term, &factor) = self.0.first_key_value().filter(|_| self.0.len() == 1)?;
        let inverse = Term { z: term.z.checked_neg()?, ..Term::default() };
        (*term == Term { z: term.z, ..Term::default() })
            .then(|| Terms(BTreeMap::from([(inverse, factor.recip())])))
    }

    /// The sum over the keys of each row, of which there are `columns`; `None` where it is none of the known quantities.
    pub fn sum_of_rows(&self, columns: usize) -> Option<Terms> {
        let mut sum = Terms::default();
        for (&term, &factor) in &self.0 {
            let (z, d) = (term.z.checked_add(1)?, term.d.checked_add(1)?);
            let (term, factor) = match (term.e, term.g) {
                (0, 0) => (term, factor * columns as f64),
                (1, 0) => (Term { e: 0, z, ..term }, factor),
                // E G = Z P G
                (1, 1) => (Term { e: 0, g: 0, z, d }, factor),
                _ => return None,
            };
            sum = sum.plus(&Terms(BTreeMap::from([(term, factor)])));
        }
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradient of a softmax as JAX writes it, by the quotient rule, and as it is usually written.
    #[test]
    fn both_forms_of_the_gradient_are_one() {
        let (e, g) = (Terms::exponentials(), Terms::gradients_of_weights());
        let z = e.sum_of_rows(5).unwrap();
        let p = e.times(&z.inverse().unwrap()).unwrap();
        assert!(p.is_weights());
        let mean = p.times(&g).unwrap().sum_of_rows(5).unwrap();
        let usual = p.times(&g.plus(&mean.scaled(-1.0))).unwrap();
        assert_eq!(usual.gradients_of_scores(), Some(1.0));
        let square = z.times(&z).unwrap().inverse().unwrap();
        let quotient = g.times(&square).unwrap().times(&e).unwrap().sum_of_rows(5).unwrap().scaled(-1.0);
        let quotient = g.times(&z.inverse().unwrap()).unwrap().plus(&quotient).times(&e).unwrap();
        assert_eq!(quotient, usual);
        // Gradients of scores sum to 0 over a row: so does what flows through the maximum.
        assert!(usual.sum_of_rows(5).unwrap().is_zero());
        assert_eq!(usual.scaled(0.25).gradients_of_scores(), Some(0.25));
        assert_eq!(usual.plus(&p).gradients_of_scores(), None);
        assert_eq!(g.sum_of_rows(5), None);
    }
}
