//! Markers of points. Different markers make curves distinguishable without colours.

use std::f64::consts::TAU;

/// The shape of the markers at the points of a curve.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Turned,
    Star,
}

impl Marker {
    /// Returns the shape for curve number `n`.
    pub fn nth(n: usize) -> Self {
        const ALL: [Marker; 6] = [
            Marker::Circle,
            Marker::Square,
            Marker::Triangle,
            Marker::Diamond,
            Marker::Turned,
            Marker::Star,
        ];
        ALL[n % ALL.len()]
    }

    /// Returns the outline of the marker around a position, as the data of an SVG path.
    pub fn path(self, [x, y]: [f64; 2]) -> String {
        let corners = |count: usize, radius: &dyn Fn(usize) -> f64, turned: f64| {
            let corner = |n: usize| {
                let angle = (n as f64 / count as f64 + turned) * TAU;
                let (sin, cos) = angle.sin_cos();
                format!("{:.1} {:.1}", x + radius(n) * sin, y - radius(n) * cos)
            };
            format!("M{}Z", (0..count).map(corner).collect::<Vec<_>>().join("L"))
        };
        match self {
            Self::Circle => {
                format!("M{:.1} {y:.1}a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0Z", x - 3.6)
            }
            Self::Square => corners(4, &|_| 4.8, 0.125),
            Self::Triangle => corners(3, &|_| 5.0, 0.0),
            Self::Diamond => corners(4, &|_| 5.0, 0.0),
            Self::Turned => corners(3, &|_| 5.0, 0.5),
            Self::Star => corners(10, &|n| if n.is_multiple_of(2) { 5.6 } else { 2.4 }, 0.0),
        }
    }
}
