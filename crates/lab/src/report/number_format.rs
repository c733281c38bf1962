//! Formats numbers with a reasonable number of digits, and with words for infinity and NaN.

/// Returns a number with four significant digits and grouped thousands; "none" if it is not finite.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "none".to_owned();
    }
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e15).contains(&size) {
        return power_of_ten(value);
    }
    // An integer, such as a count, keeps all its digits.
    if size.fract() == 0.0 || size >= 1000.0 {
        return grouped(value);
    }
    // Number of digits before the decimal point: 1 for 1 to 9.99, 3 for 100 to 999; zero or
    // negative below 1.
    let before = size.log10().floor() as i32 + 1;
    let text = format!("{value:.*}", usize::try_from(4 - before).unwrap_or(0));
    trimmed(&text)
}

/// Returns a number with three significant digits, for sentences; "none" if it is not finite.
#[must_use]
pub fn rounded(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 || !size.is_finite() {
        return number(value);
    }
    // The decimal exponent of the last of three significant digits.
    let power = size.log10().floor() as i32 - 2;
    let scale = 10_f64.powi(power.abs());
    let digits =
        if power < 0 { (value * scale).round() / scale } else { (value / scale).round() * scale };
    number(digits)
}

/// Formats a factor, such as "×1.04"; "none" if it is not finite.
#[must_use]
pub fn factor(value: f64) -> String {
    if !value.is_finite() {
        return "none".to_owned();
    }
    match value.abs() {
        0.0..100.0 => format!("×{value:.2}"),
        _ => format!("×{}", number(value)),
    }
}

/// Formats a number that is far from 1, such as a small share of lost packets: "2×10⁻⁶".
fn power_of_ten(value: f64) -> String {
    let text = format!("{value:.2e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let raised = exponent.chars().map(|c| match c {
        '0'..='9' => ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][c as usize - '0' as usize],
        _ => '⁻',
    });
    format!("{}×10{}", trimmed(digits), raised.collect::<String>())
}

/// Formats an integer, with a thin space between thousands if it has five digits or more.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let sign = if value < 0.0 { "−" } else { "" };
    if digits.len() < 5 {
        return format!("{sign}{digits}");
    }
    let mut text = sign.to_owned();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Removes trailing zeros of a fraction, and replaces a hyphen by a minus sign.
fn trimmed(text: &str) -> String {
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_are_shown_and_counts_in_full() {
        let shown = [
            (0.0, "0"),
            (0.408, "0.408"),
            (0.000_123_46, "0.0001235"),
            (10.384, "10.38"),
            (999.96, "1000"),
            (-2.5, "−2.5"),
            (4253.7, "4254"),
            (3_353_821.0, "3\u{202f}353\u{202f}821"),
            (1e20, "1×10²⁰"),
            (-2.5e-6, "−2.5×10⁻⁶"),
        ];
        for (value, text) in shown {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn numbers_in_sentences_have_three_digits() {
        let shown = [
            (0.0, "0"),
            (0.408, "0.408"),
            (16.62, "16.6"),
            (0.99999, "1"),
            (-1234.5, "−1230"),
            (3_353_821.0, "3\u{202f}350\u{202f}000"),
            (2.345e-6, "2.35×10⁻⁶"),
            (1e300, "1×10³⁰⁰"),
            (f64::NAN, "none"),
        ];
        for (value, text) in shown {
            assert_eq!(rounded(value), text, "{value}");
        }
    }

    #[test]
    fn values_that_are_not_numbers_are_shown_as_none() {
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(number(value), "none");
            assert_eq!(factor(value), "none");
        }
        assert_eq!(factor(1.036), "×1.04");
        assert_eq!(factor(1234.0), "×1234");
    }
}
