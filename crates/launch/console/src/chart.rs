//! Draws a series of numbers as a one-line chart.

/// Heights of a column, from the lowest.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws one column for each number; larger numbers have higher columns.
///
/// If there is no room for all numbers, each column shows the mean of several numbers. The smallest
/// value has the lowest column, and the largest value the highest. Numbers that are not finite are
/// left out.
pub fn columns(numbers: &[f64], room: usize) -> String {
    let finite: Vec<f64> = numbers
        .iter()
        .copied()
        .filter(|number| number.is_finite())
        .collect();
    if finite.is_empty() || room == 0 {
        return String::new();
    }
    let each = finite.len().div_ceil(room);
    #[expect(
        clippy::cast_precision_loss,
        reason = "a column stands for few numbers"
    )]
    let means: Vec<f64> = finite
        .chunks(each)
        .map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64)
        .collect();
    let least = means.iter().copied().fold(f64::INFINITY, f64::min);
    let range = means.iter().copied().fold(f64::NEG_INFINITY, f64::max) - least;
    let height = |number: &f64| {
        let share = if range > 0.0 {
            (number - least) / range
        } else {
            0.0
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share is from 0 to 1"
        )]
        let index = (share * 7.0).round() as usize;
        HEIGHTS[index.min(7)]
    };
    means.iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn heights_are_in_proportion() {
        assert_eq!(columns(&[8.0, 4.0, 1.0, f64::NAN], 10), "█▄▁");
        assert_eq!(columns(&[3.0, 3.0], 10), "▁▁");
        assert_eq!(columns(&[9.0, 7.0, 1.0, 1.0], 2), "█▁");
        assert_eq!(columns(&[], 10), "");
    }
}
