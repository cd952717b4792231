//! Efficiency as a function of size: the part of its peak that a device reaches.

use partita_base::{Diagnostic, Result};

/// Efficiency by size. Between two points it follows a power of the size, which is a straight line
/// on logarithmic axes; before the first point and after the last one it is constant. Without
/// points it is 1.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// The same efficiency for every size.
    pub fn constant(efficiency: f64) -> Curve {
        Curve { points: vec![(1.0, efficiency)] }
    }

    /// The curve through these points: a size and the efficiency at it.
    ///
    /// # Errors
    /// E472 if sizes do not ascend, an efficiency is not above 0 and at most 1, or an efficiency
    /// rises faster than its size, so that more work would take less time.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Curve> {
        let malformed = |expected: &str, (size, efficiency): (f64, f64)| {
            Err(Diagnostic::new("E472", "invalid efficiency curve")
                .expected(expected)
                .found(format!("efficiency {efficiency} at size {size}")))
        };
        for (place, &(size, efficiency)) in points.iter().enumerate() {
            if !(size > 0.0 && size.is_finite() && efficiency > 0.0 && efficiency <= 1.0) {
                return malformed("sizes above 0, efficiencies above 0 and at most 1", (size, efficiency));
            }
            let Some(&(smaller, below)) = place.checked_sub(1).map(|before| &points[before]) else {
                continue;
            };
            if size <= smaller {
                return malformed("ascending sizes", (size, efficiency));
            }
            if size / efficiency < smaller / below {
                let why = "an efficiency that rises no faster than the size: more work takes no less time";
                return malformed(why, (size, efficiency));
            }
        }
        Ok(Curve { points })
    }

    /// The efficiency at a size.
    pub fn at(&self, size: f64) -> f64 {
        let after = self.points.partition_point(|(point, _)| *point <= size);
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (Some((smaller, below)), Some(&(larger, above))) => {
                let power = (above / below).ln() / (larger / smaller).ln();
                below * (size / smaller).powf(power)
            }
            (Some((_, efficiency)), None) | (None, Some(&(_, efficiency))) => efficiency,
            (None, None) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_passes_through_its_points() {
        let curve = Curve::new(vec![(1e6, 0.1), (1e8, 0.4), (1e10, 0.8)]).unwrap();
        for (size, efficiency) in [(1.0, 0.1), (1e6, 0.1), (1e7, 0.2), (1e8, 0.4), (1e10, 0.8), (1e20, 0.8)] {
            assert!((curve.at(size) - efficiency).abs() < 1e-12, "{size}: {}", curve.at(size));
        }
        assert_eq!((Curve::default().at(7.0), Curve::constant(0.5).at(7.0)), (1.0, 0.5));
    }

    #[test]
    fn curves_that_no_device_has_are_refused() {
        let refused = [
            vec![(0.0, 0.5)],
            vec![(f64::NAN, 0.5)],
            vec![(1.0, 0.0)],
            vec![(1.0, 1.5)],
            vec![(2.0, 0.5), (2.0, 0.6)],
            vec![(1.0, 0.1), (2.0, 0.3)],
        ];
        for points in refused {
            assert_eq!(Curve::new(points.clone()).unwrap_err().code, "E472", "{points:?}");
        }
    }
}
