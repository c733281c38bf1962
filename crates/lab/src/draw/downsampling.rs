//! Reduces the number of points in a drawing of thousands of requests without a visible change.

use std::collections::BTreeMap;

/// Maximum number of dots that are drawn for a curve, or of squares that are drawn in place of dots: about 100 KB of
/// SVG text.
pub const MOST_DOTS: usize = 8000;

/// Maximum number of points that are drawn for a line: a lowest and a highest point for each of the 640 horizontal
/// units, and the two ends of the line.
pub const MOST_ON_LINE: usize = 1500;

/// Dots to draw: each by itself or, if there are too many, squares with the number of dots inside.
#[derive(Clone, Debug, PartialEq)]
pub enum Dots {
    Single(Vec<[f64; 2]>),
    /// The side length of the squares, and for each square that is not empty its middle and the number of dots in it.
    Squares(f64, Vec<([f64; 2], usize)>),
}

/// Returns single dots if there are at most [`MOST_DOTS`], otherwise squares. The squares have sides of two units. If
/// more than [`MOST_DOTS`] of them contain dots, their sides are made longer, by 25 % at a time. Coordinates are in
/// units of the drawing.
pub fn dots(points: Vec<[f64; 2]>) -> Dots {
    if points.len() <= MOST_DOTS {
        return Dots::Single(points);
    }
    let mut side = 2.0;
    loop {
        let mut counts = BTreeMap::new();
        let square = |at: f64| (at / side).floor() as i64;
        for [x, y] in &points {
            *counts.entry([square(*x), square(*y)]).or_insert(0) += 1;
        }
        if counts.len() <= MOST_DOTS {
            let middle = |square: i64| (square as f64 + 0.5) * side;
            let squares = counts.into_iter().map(|([x, y], count)| ([middle(x), middle(y)], count));
            return Dots::Squares(side, squares.collect());
        }
        side *= 1.25;
    }
}

/// Reduces the points of a line. If the line is sorted by x, returns the lowest and the highest point for each unit of
/// x. Otherwise returns every n-th point.
pub fn line(points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    if points.len() <= MOST_ON_LINE {
        return points;
    }
    if !points.is_sorted_by_key(|[x, _]| *x) {
        let step = points.len().div_ceil(MOST_ON_LINE);
        return points.into_iter().step_by(step).collect();
    }
    points.chunk_by(|a, b| a[0].floor() == b[0].floor()).flat_map(extremes).collect()
}

/// Returns the lowest and the highest of these points, in the order of the line.
fn extremes(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let by_y = |a: &(usize, &[f64; 2]), b: &(usize, &[f64; 2])| a.1[1].total_cmp(&b.1[1]);
    let low = points.iter().enumerate().min_by(by_y);
    let high = points.iter().enumerate().max_by(by_y);
    let mut both: Vec<_> = low.into_iter().chain(high).collect();
    both.sort_by_key(|(n, _)| *n);
    both.dedup_by_key(|(n, _)| *n);
    both.into_iter().map(|(_, point)| *point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_dots_is_bounded_and_every_point_is_counted() {
        let cloud = (0..100_000).map(|n| [f64::from(n % 601), f64::from(n % 389)]);
        let Dots::Squares(side, squares) = dots(cloud.chain([[599.0, 5000.0]]).collect()) else {
            panic!("too many for single dots");
        };
        assert!(squares.len() <= MOST_DOTS, "{}", squares.len());
        assert_eq!(squares.iter().map(|(_, count)| count).sum::<usize>(), 100_001);
        let ([x, y], count) = squares.iter().find(|([_, y], _)| *y > 1000.0).unwrap();
        assert!((x - 599.0).abs() <= side && (y - 5000.0).abs() <= side && *count == 1);
    }

    #[test]
    fn few_points_stay_as_they_are() {
        let few = vec![[1.0, 1.0], [1.0, 1.0]];
        assert_eq!(dots(few.clone()), Dots::Single(few.clone()));
        assert_eq!(line(few.clone()), few);
    }

    #[test]
    fn a_line_keeps_its_peaks() {
        let mut points: Vec<_> = (0..50_000).map(|n| [f64::from(n) / 100.0, 1.0]).collect();
        points[30_000][1] = 99.0;
        let thin = line(points);
        assert!(thin.len() <= MOST_ON_LINE, "{}", thin.len());
        assert!(thin.contains(&[300.0, 99.0]));
    }

    #[test]
    fn a_line_that_turns_back_is_bounded_as_well() {
        let points = (0..50_000).map(|n| [f64::from(n % 7), f64::from(n)]).collect();
        assert!(line(points).len() <= MOST_ON_LINE);
    }
}
