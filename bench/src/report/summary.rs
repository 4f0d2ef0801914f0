//! Several figures for one thing, in one cell of a table.

use std::fmt;

/// The middle and the ends of what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    min: f64,
    pub(crate) max: f64,
}

impl Summary {
    /// None if there are no figures. Of an even number, the median is the mean of the middle two.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let lower = if values.len().is_multiple_of(2) {
            values[middle - 1]
        } else {
            upper
        };
        Some(Self {
            median: f64::midpoint(lower, upper),
            min: *values.first()?,
            max: *values.last()?,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { median, min, max } = self;
        f.write_str(&number(*median))?;
        if min == max {
            return Ok(());
        }
        write!(f, " [{}..{}]", number(*min), number(*max))
    }
}

/// About three digits: more would be noise.
pub(crate) fn number(value: f64) -> String {
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
    fn takes_middle_and_ends() {
        let summary = |values: &[f64]| Summary::of(values.iter().copied());
        assert_eq!(summary(&[]), None);
        assert_eq!(
            summary(&[3.0, 1.0, 2.0]),
            Some(Summary {
                median: 2.0,
                min: 1.0,
                max: 3.0
            })
        );
        assert_eq!(
            summary(&[4.0, 1.0]),
            Some(Summary {
                median: 2.5,
                min: 1.0,
                max: 4.0
            })
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        let written = [57_123.4, 999.6, 16.24, 2.0611].map(number);
        assert_eq!(written, ["57.1k", "1000", "16.2", "2.06"]);
    }
}
