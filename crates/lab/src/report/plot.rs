//! A plot of a report, with one or several curves on the same axes.

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub curves: Vec<Curve>,
    /// Text below the plot, for example which data is missing, and why.
    pub note: String,
}

/// An axis of a plot, with its label and its scale.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// Label of the axis, with the unit, such as "one-way delay, ms".
    pub name: String,
    /// True for a logarithmic axis. Such an axis cannot show values that are not positive; the page
    /// states how many there are.
    pub logarithmic: bool,
    /// Labels for the values 0, 1, and so on. Empty for a numeric axis.
    pub labels: Vec<String>,
}

/// A curve of a plot. Curves with the same name have the same colour, even if their sources differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    pub name: String,
    pub source: CurveSource,
    pub drawn: Drawn,
    pub points: Vec<[f64; 2]>,
}

/// Where the numbers of a curve come from, which determines how its line is drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CurveSource {
    /// The numbers were measured in this run: the line is solid.
    Ours,
    /// Printed in the paper. The line is dashed.
    Paper,
    /// Computed by a formula. The line is dotted.
    Model,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drawn {
    /// Points that are joined by straight lines.
    Line,
    /// A dot for each point, as in scatter plots.
    Dots,
    /// A bar for each point, as in histograms.
    Bars,
}

impl Plot {
    /// Returns a plot without curves. `x` and `y` are the labels of the axes with their units.
    #[must_use]
    pub fn new(title: &str, x: &str, y: &str) -> Self {
        let [x, y] = [x, y].map(|name| Axis { name: name.to_owned(), ..Axis::default() });
        Self { title: title.to_owned(), x, y, ..Self::default() }
    }

    /// Makes the plot's horizontal axis logarithmic.
    #[must_use]
    pub fn x_logarithmic(mut self) -> Self {
        self.x.logarithmic = true;
        self
    }

    /// Makes the plot's vertical axis logarithmic.
    #[must_use]
    pub fn y_logarithmic(mut self) -> Self {
        self.y.logarithmic = true;
        self
    }

    /// Sets labels, which the plot's horizontal axis shows instead of numbers.
    #[must_use]
    pub fn labels<T: ToString>(mut self, labels: impl IntoIterator<Item = T>) -> Self {
        self.x.labels = labels.into_iter().map(|label| label.to_string()).collect();
        self
    }

    #[must_use]
    pub fn curve(mut self, curve: Curve) -> Self {
        self.curves.push(curve);
        self
    }

    #[must_use]
    pub fn curves(mut self, curves: impl IntoIterator<Item = Curve>) -> Self {
        self.curves.extend(curves);
        self
    }

    /// Sets the text below the plot.
    #[must_use]
    pub fn note(mut self, text: &str) -> Self {
        text.clone_into(&mut self.note);
        self
    }
}

impl Curve {
    /// Returns a curve of measured points, which is drawn as a line unless [`dots`](Self::dots) or [`bars`](Self::bars)
    /// is called.
    #[must_use]
    pub fn ours(name: &str, points: impl IntoIterator<Item = [f64; 2]>) -> Self {
        Self::of(name, CurveSource::Ours, points)
    }

    /// Returns a curve of the paper's numbers, drawn as a dashed line.
    #[must_use]
    pub fn paper(name: &str, points: impl IntoIterator<Item = [f64; 2]>) -> Self {
        Self::of(name, CurveSource::Paper, points)
    }

    /// Returns a curve of a formula's predictions, drawn as a dotted line.
    #[must_use]
    pub fn model(name: &str, points: impl IntoIterator<Item = [f64; 2]>) -> Self {
        Self::of(name, CurveSource::Model, points)
    }

    /// Returns a histogram as bars. `from..to` is divided into `bins` equal parts, and the height of a bar is the
    /// number of `values` in its part. Values outside of the range count in the first or the last bar, so that no value
    /// is lost.
    #[must_use]
    pub fn histogram(
        name: &str,
        values: impl IntoIterator<Item = f64>,
        [from, to]: [f64; 2],
        bins: usize,
    ) -> Self {
        let width = (to - from) / bins as f64;
        let mut counts = vec![0_u64; bins];
        for value in values.into_iter().filter(|value| value.is_finite()) {
            // A cast of a negative float to usize gives 0, so values below the range count in the
            // first bar.
            let bin = ((value - from) / width) as usize;
            if let Some(count) = counts.get_mut(bin.min(bins.saturating_sub(1))) {
                *count += 1;
            }
        }
        let middle = |bin: usize| from + (bin as f64 + 0.5) * width;
        let points = counts.iter().enumerate().map(|(bin, count)| [middle(bin), *count as f64]);
        Self::ours(name, points).bars()
    }

    fn of(name: &str, source: CurveSource, points: impl IntoIterator<Item = [f64; 2]>) -> Self {
        let points = points.into_iter().collect();
        Self { name: name.to_owned(), source, drawn: Drawn::Line, points }
    }

    #[must_use]
    pub fn dots(mut self) -> Self {
        self.drawn = Drawn::Dots;
        self
    }

    #[must_use]
    pub fn bars(mut self) -> Self {
        self.drawn = Drawn::Bars;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_every_value_once() {
        let values = [0.5, 1.5, 1.6, 9.9, 12.0, -1.0, f64::NAN];
        let curve = Curve::histogram("response times", values, [0.0, 10.0], 10);
        assert_eq!(curve.points.len(), 10);
        assert_eq!(curve.points[0], [0.5, 2.0]);
        assert_eq!(curve.points[1], [1.5, 2.0]);
        assert_eq!(curve.points[9], [9.5, 2.0]);
        assert_eq!(curve.points.iter().map(|[_, y]| y).sum::<f64>(), 6.0);
    }

    #[test]
    fn a_histogram_without_bins_is_empty() {
        assert!(Curve::histogram("none", [1.0], [0.0, 1.0], 0).points.is_empty());
        assert_eq!(Curve::histogram("no width", [1.0], [1.0, 1.0], 2).points.len(), 2);
    }
}
