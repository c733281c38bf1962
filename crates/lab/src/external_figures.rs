//! A section of a report with figures that `cargo xtask vm-test` measured in a virtual machine. The section compares a
//! gateway with the initiator, target and caches of a kernel that this host does not have.

use serde::Deserialize;

use crate::{Cell, Error, ReportTable, Section};

/// Maximum number of figures in a file.
const MOST: usize = 1000;

/// A figure in the file that `cargo xtask vm-test --figures` has written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExternalFigure {
    what: String,
    with: String,
    unit: String,
    value: f64,
}

/// Returns a section with the figures in `text`, a file that `cargo xtask vm-test` has written.
///
/// # Errors
/// If the text is not a list of figures, or the list is too long.
pub fn beside(text: &str) -> Result<Section, Error> {
    let found: Vec<ExternalFigure> = serde_json::from_str(text)
        .map_err(|error| Error::Settings(format!("external figures: {error}")))?;
    if found.len() > MOST {
        return Err(Error::Settings(format!("external figures: more than {MOST}")));
    }
    let mut section = Section::new("Peers that need another kernel").text(
        "Measured by `cargo xtask vm-test` with Debian's kernel in a virtual machine. If the machine is emulated, compare the figures of this \
         section only with each other: its system calls and packets take ten times as long as those of its host.",
    );
    let mut whats: Vec<&str> = found.iter().map(|it| it.what.as_str()).collect();
    whats.dedup();
    for what in whats {
        let rows: Vec<&ExternalFigure> = found.iter().filter(|it| it.what == what).collect();
        let unit = rows.first().map_or("", |it| it.unit.as_str());
        let table = ReportTable::new(what, "with").column("measured", unit).rows(
            rows,
            |it| it.with.clone(),
            |it| vec![Cell::ours(it.value)],
        );
        section = section.table(table);
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_figures_are_shown_in_one_table_for_each_workload() {
        let text = r#"[{"what":"PostMark","with":"LIO","unit":"1/s","value":3.4},
            {"what":"PostMark","with":"dm-writecache","unit":"1/s","value":14.3},
            {"what":"fio","with":"LIO","unit":"MB/s","value":1.0}]"#;
        let section = beside(text).unwrap();
        assert_eq!(section.cells().count(), 3);
        assert_eq!(section.parts.len(), 2);
        for wrong in ["", "{}", r#"[{"what":"x"}]"#] {
            assert!(beside(wrong).is_err(), "{wrong}");
        }
    }
}
