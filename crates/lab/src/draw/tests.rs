//! Tests that drawings are complete and do not contain NaN.

use super::*;

fn checked(plot: &Plot) -> String {
    let text = figure(plot);
    for wrong in ["NaN", "inf", "nan"] {
        assert!(!text.contains(wrong), "{wrong} in {text}");
    }
    text
}

#[test]
fn odd_data_is_drawn_without_values_that_are_not_numbers() {
    let odd: [&[[f64; 2]]; 8] = [
        &[],
        &[[0.0, 0.0]],
        &[[5.0, 5.0]],
        &[[1.0, 2.0], [1.0, 2.0]],
        &[[f64::NAN, 1.0], [1.0, f64::INFINITY]],
        &[[0.0, -1.0], [0.0, -2.0]],
        &[[1e308, 1e-320], [-1e308, 1e308]],
        &[[1.0, 1.0], [2.0, f64::NAN], [3.0, 3.0]],
    ];
    for points in odd {
        for curve in [
            Curve::ours("a", points.iter().copied()),
            Curve::paper("a", points.iter().copied()).dots(),
            Curve::model("a", points.iter().copied()).bars(),
        ] {
            let plot = Plot::new("odd", "x", "y").curve(curve);
            checked(&plot);
            checked(&plot.clone().x_logarithmic());
            checked(&plot.clone().y_logarithmic().x_logarithmic());
            checked(&plot.labels(["one", "two"]));
        }
    }
}

#[test]
fn points_that_cannot_be_drawn_are_counted() {
    let plot =
        Plot::new("t", "x", "y").curve(Curve::ours("a", [[1.0, 1.0], [2.0, f64::NAN], [3.0, 3.0]]));
    assert!(checked(&plot).contains("a: 1 of 3 points are no numbers and are not drawn."));
}

#[test]
fn a_logarithmic_axis_says_so() {
    let plot = Plot::new("t", "delay, ms", "MB/s").curve(Curve::ours("a", [[1.0, 1.0]]));
    let count = |plot: &Plot| checked(plot).matches("(logarithmic axis)").count();
    assert_eq!(count(&plot), 0);
    let plot = plot.y_logarithmic();
    assert!(checked(&plot).contains(">MB/s (logarithmic axis)</text>"));
    assert_eq!(count(&plot.x_logarithmic()), 2);
}

#[test]
fn a_plot_without_data_says_so() {
    let text = checked(&Plot::new("Figure 4", "x", "y").curve(Curve::ours("a", [])));
    assert!(text.contains("not measured") && !text.contains("<svg"), "{text}");
}

#[test]
fn a_curve_without_points_is_in_words_and_not_in_the_legend() {
    let plot = Plot::new("t", "x", "y")
        .curve(Curve::ours("here", [[0.0, 1.0]]))
        .curve(Curve::ours("TPC-C", []));
    let text = checked(&plot);
    assert!(text.contains("Not measured: TPC-C.") && !text.contains("</svg>TPC-C"), "{text}");
}

#[test]
fn curves_of_one_name_share_a_colour_and_others_do_not() {
    let points = [[0.0, 1.0], [1.0, 2.0]];
    let plot = Plot::new("t", "x", "y")
        .curve(Curve::ours("DNES", points))
        .curve(Curve::paper("DNES", points))
        .curve(Curve::model("array", points));
    let text = checked(&plot);
    for class in ["k0 ours", "k0 paper", "k1 model"] {
        assert!(text.contains(class), "{class} in {text}");
    }
    assert!(text.contains("DNES (paper)") && text.contains("array (model)"));
}

#[test]
fn a_quarter_of_a_million_dots_stay_a_small_drawing() {
    let points = (0..230_370).map(|n| [f64::from(n) * 0.003, f64::from(n % 977) * 0.01]);
    let text = checked(
        &Plot::new("trace", "time, s", "response, ms").curve(Curve::ours("all", points).dots()),
    );
    assert!(text.len() < 200_000, "{} bytes", text.len());
    assert!(
        text.contains("all: 230\u{202f}370 points; each square stands for those in it"),
        "no note"
    );
}

#[test]
fn names_are_text_and_not_markup() {
    let plot = Plot::new("<b>", "<i>", "\"'")
        .labels(["<u>"])
        .curve(Curve::ours("<s>", [[0.0, 1.0]]).bars());
    let text = checked(&plot);
    for wrong in ["<b>", "<i>", "<u>", "<s>", "\"\"'"] {
        assert!(!text.contains(wrong), "{wrong} in {text}");
    }
}

#[test]
fn bars_of_two_curves_are_next_to_each_other() {
    let plot = Plot::new("t", "x", "y")
        .labels(["512", "1024"])
        .curve(Curve::ours("a", [[0.0, 1.0], [1.0, 2.0]]).bars())
        .curve(Curve::ours("b", [[0.0, 3.0], [1.0, 4.0]]).bars());
    let text = checked(&plot);
    let lefts: Vec<f64> = text
        .split("<rect x=\"")
        .skip(1)
        .take(4)
        .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
        .collect();
    assert!((lefts[2] - lefts[0] - WIDEST_BAR).abs() < 0.2, "{lefts:?}");
    assert!((lefts[1] - lefts[0] - (RIGHT - LEFT) / 2.0).abs() < 0.2, "{lefts:?}");
}
