//! What was found, beside what the paper says.

use crate::{Record, Report};

/// The report of these records, and of the points that were left out: name and reason.
#[must_use]
pub fn report(_records: &[Record], _left_out: &[(String, String)]) -> Report {
    Report { title: "STICS".to_owned(), ..Report::default() }
}
