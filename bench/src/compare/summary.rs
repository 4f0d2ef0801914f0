//! Median and quartiles of repeated measurements.

use std::fmt;

/// The median of repeated measurements, and their spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// A quarter of the values are below the first of these, and a quarter above the second.
    pub(crate) quartiles: [f64; 2],
}

impl Summary {
    /// Summarizes `values`; None if there are none. A quantile between two values is interpolated.
    pub(crate) fn from_values(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        let quantile = |quarters: usize| {
            let (index, rest) = (quarters * last / 4, quarters * last % 4);
            let next = values[(index + 1).min(last)];
            values[index] + (next - values[index]) * rest as f64 / 4.0
        };
        Some(Self {
            median: quantile(2),
            quartiles: [quantile(1), quantile(3)],
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            median,
            quartiles: [lower, upper],
        } = self;
        f.write_str(&format_number(*median))?;
        if lower == upper {
            return Ok(());
        }
        write!(f, " [{}..{}]", format_number(*lower), format_number(*upper))
    }
}

/// Formats a figure with about three digits: more would be noise.
pub(crate) fn format_number(value: f64) -> String {
    match value.abs() {
        size if size >= 10_000.0 => format!("{:.1}k", value / 1000.0),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_median_and_quartiles() {
        let summary = |values: &[f64]| Summary::from_values(values.iter().copied());
        assert_eq!(summary(&[]), None);
        assert_eq!(
            summary(&[3.0, 1.0, 2.0]),
            Some(Summary {
                median: 2.0,
                quartiles: [1.5, 2.5],
            })
        );
        assert_eq!(
            summary(&[4.0, 1.0]),
            Some(Summary {
                median: 2.5,
                quartiles: [1.75, 3.25],
            })
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let written = [57_123.4, 999.6, 16.24, 2.0611].map(format_number);
        assert_eq!(written, ["57.1k", "1000", "16.2", "2.06"]);
    }
}
