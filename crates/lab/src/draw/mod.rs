//! Draws a plot as SVG for a page: lines with markers, dots, bars, ticks and a legend. Colours are CSS classes for
//! which the page has a light and a dark variant.

mod curve_style;
mod marker;
mod axis_scale;
mod downsampling;

use std::fmt::Write;

use crate::{Axis, Curve, CurveSource, Drawn, Plot, html_escape::escaped, number};

use axis_scale::AxisScale;
use curve_style::{CurveStyle, legend};
use downsampling::Dots;

/// Returns a plot as a `figure` element: heading, drawing, legend, and notes about data that is not drawn.
pub fn figure(plot: &Plot) -> String {
    let canvas = Canvas::new(plot);
    let mut out = format!("<figure><figcaption>{}</figcaption>\n", escaped(&plot.title));
    if plot.curves.iter().any(|curve| canvas.draws(curve)) {
        let _ = write!(
            out,
            "<div class=\"scroll\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n{}{}</svg></div>\n{}",
            escaped(&plot.title),
            canvas.axes(),
            canvas.curves(),
            legend(plot, |curve| canvas.draws(curve)),
        );
    } else {
        out.push_str("<p class=\"none\">Nothing to draw: not measured.</p>\n");
    }
    for note in [plot.note.clone()].into_iter().chain(canvas.notes()) {
        if !note.is_empty() {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(&note));
        }
    }
    out.push_str("</figure>\n");
    out
}

/// Size of the drawing in units: the width of the page's text at its font size.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;

/// The area between the axes. The margins have space for the numbers at the left and below, and for half of the last
/// number at the right.
const LEFT: f64 = 68.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 326.0;

/// A curve with more points than this is drawn without a marker at each point.
const MOST_MARKED: usize = 60;

/// Maximum width of a bar, in units of the drawing.
const WIDEST_BAR: f64 = 48.0;

/// A plot, with the scales that map its numbers to positions in the drawing.
struct Canvas<'a> {
    plot: &'a Plot,
    x: AxisScale,
    y: AxisScale,
    /// Total width of all bars of a bar chart at one position of the x axis, in units of the drawing.
    bars: f64,
}

impl<'a> Canvas<'a> {
    fn new(plot: &'a Plot) -> Self {
        let points = || plot.curves.iter().flat_map(|curve| &curve.points);
        let x = if plot.x.labels.is_empty() {
            let sides = sides_of_bars(plot);
            AxisScale::over(points().map(|[x, _]| *x).chain(sides), plot.x.logarithmic, 8)
        } else {
            AxisScale::named(&plot.x.labels)
        };
        // Readers compare the lengths of bars, so the axis begins at zero if it is not logarithmic.
        let zero = (!plot.y.logarithmic).then_some(0.0);
        let y = AxisScale::over(points().map(|[_, y]| *y).chain(zero), plot.y.logarithmic, 6);
        let mut canvas = Self { plot, x, y, bars: 0.0 };
        canvas.bars = canvas.bars_width();
        canvas
    }

    /// Returns the positions in the drawing of those points of a curve that can be drawn.
    fn places(&self, curve: &Curve) -> Vec<[f64; 2]> {
        let place = |[x, y]: &[f64; 2]| {
            let (x, y) = (self.x.place(*x)?, self.y.place(*y)?);
            Some([LEFT + x * (RIGHT - LEFT), BOTTOM - y * (BOTTOM - TOP)])
        };
        curve.points.iter().filter_map(place).collect()
    }

    /// Returns true if at least one point of the curve can be drawn.
    fn draws(&self, curve: &Curve) -> bool {
        curve.points.iter().any(|point| self.shows(point))
    }

    /// Returns true if both coordinates of the point can be drawn.
    fn shows(&self, [x, y]: &[f64; 2]) -> bool {
        self.x.place(*x).is_some() && self.y.place(*y).is_some()
    }

    /// In a bar chart, returns the total width of the bars at one position of the x axis: the distance between the two
    /// nearest positions, minus a gap.
    fn bars_width(&self) -> f64 {
        let bars = || self.plot.curves.iter().filter(|curve| curve.drawn == Drawn::Bars);
        let places = bars().flat_map(|curve| self.places(curve)).map(|[x, _]| x);
        let room = least_gap(places).unwrap_or(f64::INFINITY) * 0.85;
        room.min(bars().count() as f64 * WIDEST_BAR)
    }

    fn axes(&self) -> String {
        let mut out = String::from("<g class=\"axes\">\n");
        for (place, text) in &self.y.ticks {
            let y = BOTTOM - place * (BOTTOM - TOP);
            let _ = writeln!(
                out,
                "<path class=\"grid\" d=\"M{LEFT:.0} {y:.1}H{RIGHT:.0}\"/>\
                 <text class=\"y\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
                LEFT - 8.0,
                y + 4.0,
                escaped(text),
            );
        }
        for (place, text) in &self.x.ticks {
            let x = LEFT + place * (RIGHT - LEFT);
            let _ = writeln!(
                out,
                "<path class=\"tick\" d=\"M{x:.1} {BOTTOM:.0}v5\"/>\
                 <text class=\"x\" x=\"{x:.1}\" y=\"{:.0}\">{}</text>",
                BOTTOM + 20.0,
                escaped(text),
            );
        }
        let _ = writeln!(
            out,
            "<path class=\"frame\" d=\"M{LEFT:.0} {TOP:.0}V{BOTTOM:.0}H{RIGHT:.0}\"/>\n\
             <text class=\"x\" x=\"{:.0}\" y=\"{:.0}\">{}</text>\n\
             <text class=\"name\" transform=\"translate(16 {:.0}) rotate(-90)\">{}</text>\n</g>",
            f64::midpoint(LEFT, RIGHT),
            HEIGHT - 8.0,
            escaped(&axis_name(&self.plot.x)),
            f64::midpoint(TOP, BOTTOM),
            escaped(&axis_name(&self.plot.y)),
        );
        out
    }

    fn curves(&self) -> String {
        let mut out = String::new();
        let bars = self.plot.curves.iter().filter(|curve| curve.drawn == Drawn::Bars).count();
        let mut bar = 0;
        for curve in &self.plot.curves {
            let look = CurveStyle::of(curve, self.plot);
            let _ = write!(out, "<g class=\"{}\">", look.classes());
            let places = self.places(curve);
            match curve.drawn {
                Drawn::Line => self.line(&mut out, curve, places, look),
                Drawn::Dots => dots(&mut out, places, look),
                Drawn::Bars => {
                    self.bars(&mut out, curve, [bar, bars]);
                    bar += 1;
                }
            }
            out.push_str("</g>\n");
        }
        out
    }

    fn line(&self, out: &mut String, curve: &Curve, places: Vec<[f64; 2]>, look: CurveStyle) {
        let is_marked = places.len() <= MOST_MARKED && curve.source != CurveSource::Model;
        let thin = downsampling::line(places);
        let mut to = 'M';
        out.push_str("<path class=\"line\" d=\"");
        for [x, y] in &thin {
            let _ = write!(out, "{to}{x:.1} {y:.1}");
            to = 'L';
        }
        out.push_str("\"/>");
        if is_marked {
            let shown = curve.points.iter().filter(|point| self.shows(point));
            for (at, [x, y]) in thin.iter().zip(shown) {
                let text = format!("{}: {}, {}", curve.name, number(*x), number(*y));
                let _ = write!(
                    out,
                    "<path d=\"{}\"><title>{}</title></path>",
                    look.marker.path(*at),
                    escaped(&text)
                );
            }
        }
    }

    /// Draws a curve of a bar chart. If several curves have bars, `all` bars stand side by side at each position, and
    /// this curve's is the `n`th.
    fn bars(&self, out: &mut String, curve: &Curve, [n, all]: [usize; 2]) {
        let width = self.bars / all as f64;
        let foot = BOTTOM - self.y.foot() * (BOTTOM - TOP);
        let shown =
            curve.points.iter().filter(|[x, y]| self.x.place(*x).and(self.y.place(*y)).is_some());
        for ([x, y], [_, value]) in self.places(curve).into_iter().zip(shown) {
            let left = x - self.bars / 2.0 + n as f64 * width;
            let (top, height) = (y.min(foot), (y - foot).abs());
            let _ = write!(
                out,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"{height:.1}\"><title>{}</title></rect>",
                width.max(0.1),
                escaped(&format!("{}: {}", curve.name, number(*value))),
            );
        }
    }

    /// Describes the data that the drawing does not show.
    fn notes(&self) -> Vec<String> {
        let mut notes = vec![];
        let absent = self.plot.curves.iter().filter(|curve| curve.points.is_empty());
        let absent: Vec<&str> = absent.map(|curve| curve.name.as_str()).collect();
        if !absent.is_empty() && absent.len() < self.plot.curves.len() {
            notes.push(format!("Not measured: {}.", absent.join(", ")));
        }
        for curve in &self.plot.curves {
            let places = self.places(curve);
            let (all, shown) = (curve.points.len(), places.len());
            if shown < all {
                let what = if self.plot.x.logarithmic || self.plot.y.logarithmic {
                    "are no numbers above zero"
                } else {
                    "are no numbers"
                };
                notes.push(format!(
                    "{}: {} of {} points {what} and are not drawn.",
                    curve.name,
                    number((all - shown) as f64),
                    number(all as f64)
                ));
            }
            match curve.drawn {
                Drawn::Dots => {
                    if let Dots::Squares(..) = downsampling::dots(places) {
                        notes.push(format!(
                            "{}: {} points; each square stands for those in it: the fuller its colour, the more.",
                            curve.name,
                            number(shown as f64)
                        ));
                    }
                }
                Drawn::Line => {
                    let drawn = downsampling::line(places).len();
                    if drawn < shown {
                        notes.push(format!(
                            "{}: {} of {} points are drawn; others lie between them.",
                            curve.name,
                            number(drawn as f64),
                            number(shown as f64)
                        ));
                    }
                }
                Drawn::Bars => {}
            }
        }
        notes
    }
}

/// Returns the text next to an axis: the quantity with its unit, and whether the axis is logarithmic.
fn axis_name(axis: &Axis) -> String {
    if axis.logarithmic { format!("{} (logarithmic axis)", axis.name) } else { axis.name.clone() }
}

/// Returns the positions of the outer edges of bars on a numeric axis, so that the axis includes
/// them.
fn sides_of_bars(plot: &Plot) -> Vec<f64> {
    let bars = plot.curves.iter().filter(|curve| curve.drawn == Drawn::Bars && !plot.x.logarithmic);
    let xs: Vec<f64> = bars.flat_map(|curve| &curve.points).map(|[x, _]| *x).collect();
    let half = least_gap(xs.iter().copied()).unwrap_or(0.0) / 2.0;
    xs.into_iter().flat_map(|x| [x - half, x + half]).collect()
}

/// Returns the smallest distance between two different values.
fn least_gap(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    let gaps = values.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 1e-9);
    gaps.min_by(f64::total_cmp)
}

fn dots(out: &mut String, places: Vec<[f64; 2]>, look: CurveStyle) {
    match downsampling::dots(places) {
        Dots::Single(places) if places.len() <= MOST_MARKED => {
            for place in places {
                let _ = write!(out, "<path d=\"{}\"/>", look.marker.path(place));
            }
        }
        Dots::Single(places) => {
            // Draw each dot as a line of zero length with round ends. Its SVG text has a third of
            // the length of a circle's.
            out.push_str("<path class=\"cloud\" d=\"");
            for [x, y] in places {
                let _ = write!(out, "M{x:.1} {y:.1}h0");
            }
            out.push_str("\"/>");
        }
        Dots::Squares(side, squares) => self::squares(out, side, &squares),
    }
}

/// Draws squares in four shades, by the number of dots in them. The limits between the shades are
/// powers of the largest number: its fourth root, its square root, and its power of 0.75.
fn squares(out: &mut String, side: f64, squares: &[([f64; 2], usize)]) {
    let most = squares.iter().map(|(_, count)| *count).max().unwrap_or(1) as f64;
    let up_to = |power: f64| most.powf(power).ceil() as usize;
    let shades = [(up_to(0.25), 0.3), (up_to(0.5), 0.5), (up_to(0.75), 0.75), (usize::MAX, 1.0)];
    let mut above = 0;
    for (most, opacity) in shades {
        let of_shade = squares.iter().filter(|(_, count)| (above + 1..=most).contains(count));
        let _ = write!(
            out,
            "<path class=\"squares\" style=\"stroke-width:{side:.1}px\" opacity=\"{opacity}\" d=\""
        );
        for ([x, y], _) in of_shade {
            let _ = write!(out, "M{:.1} {y:.1}h{side:.1}", x - side / 2.0);
        }
        out.push_str("\"/>");
        above = most;
    }
}

#[cfg(test)]
mod tests;
