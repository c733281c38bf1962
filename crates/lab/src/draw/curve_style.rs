//! Styles of curves, and the legend.

use std::{collections::BTreeSet, fmt::Write};

use super::marker::Marker;
use crate::{Curve, CurveSource, Drawn, Plot, html_escape::escaped};

/// Number of colours, which are CSS classes of the page. They are distinguishable with colour vision deficiency, too
/// (Okabe and Ito, "Color universal design", 2008). A ninth curve has the first colour and another marker.
const COLOURS: usize = 8;

/// The colour and the marker of a curve.
#[derive(Clone, Copy)]
pub struct CurveStyle {
    colour: usize,
    pub marker: Marker,
    source: CurveSource,
    drawn: Drawn,
}

impl CurveStyle {
    /// Returns the style of a curve. Curves with the same name have the same colour and marker.
    pub fn of(curve: &Curve, plot: &Plot) -> Self {
        let mut seen = BTreeSet::new();
        let names = plot.curves.iter().map(|curve| &curve.name).filter(|name| seen.insert(*name));
        let n = names.into_iter().position(|name| *name == curve.name).unwrap_or(0);
        Self {
            colour: n % COLOURS,
            marker: Marker::nth(n + n / COLOURS),
            source: curve.source,
            drawn: curve.drawn,
        }
    }

    /// Returns the CSS classes that define the colour.
    pub fn classes(self) -> String {
        let source = match self.source {
            CurveSource::Ours => "ours",
            CurveSource::Paper => "paper",
            CurveSource::Model => "model",
        };
        format!("k{} {source}", self.colour)
    }
}

/// Returns the legend of a plot, for the curves for which `is_drawn` returns true.
pub fn legend(plot: &Plot, is_drawn: impl Fn(&Curve) -> bool) -> String {
    let mut out = String::from("<ul class=\"legend\">");
    for curve in plot.curves.iter().filter(|curve| is_drawn(curve)) {
        let look = CurveStyle::of(curve, plot);
        let sample = match look.drawn {
            Drawn::Line if look.source == CurveSource::Model => {
                "<path class=\"line\" d=\"M1 7H33\"/>".to_owned()
            }
            Drawn::Line => {
                format!(
                    "<path class=\"line\" d=\"M1 7H33\"/><path d=\"{}\"/>",
                    look.marker.path([17.0, 7.0])
                )
            }
            Drawn::Dots => format!("<path d=\"{}\"/>", look.marker.path([17.0, 7.0])),
            Drawn::Bars => "<rect x=\"8\" y=\"2\" width=\"18\" height=\"10\"/>".to_owned(),
        };
        let whose = match look.source {
            CurveSource::Ours => "",
            CurveSource::Paper => " (paper)",
            CurveSource::Model => " (model)",
        };
        let _ = write!(
            out,
            "<li><svg viewBox=\"0 0 34 14\" aria-hidden=\"true\"><g class=\"{}\">{sample}</g></svg>{}{whose}</li>",
            look.classes(),
            escaped(&curve.name),
        );
    }
    out.push_str("</ul>\n");
    out
}
