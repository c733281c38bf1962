use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The numbers of passed and failed cases of one step, and a note for the table of results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepTally {
    pub passed: u64,
    pub failed: u64,
    /// The text in the step's row of the table of results.
    pub note: String,
    /// The things that the step did not test, each in one line.
    pub left_out: Vec<String>,
}

impl StepTally {
    /// Returns the result of a step that is a single case, which passed.
    pub fn one() -> StepTally {
        StepTally { passed: 1, ..StepTally::default() }
    }

    /// Returns the result of a step that failed with `error` before it could count its cases.
    pub fn of_error(error: &anyhow::Error) -> StepTally {
        let note = first_line(&format!("{error:#}"));
        StepTally { failed: 1, ..StepTally::default() }.with_note(note)
    }

    /// Sets the text in the step's row of the table of results.
    pub fn with_note(mut self, note: impl Into<String>) -> StepTally {
        self.note = note.into();
        self
    }

    /// Counts another case, which has passed if `held` is true.
    pub fn count(&mut self, held: bool) {
        *(if held { &mut self.passed } else { &mut self.failed }) += 1;
    }

    /// Returns the result as JSON. A step that runs in a process of its own writes it to a file.
    pub fn to_json(&self) -> String {
        let StepTally { passed, failed, note, left_out } = self;
        json!({ "passed": passed, "failed": failed, "note": note, "left_out": left_out })
            .to_string()
    }

    /// Parses a result from the JSON that [`StepTally::to_json`] returns.
    pub fn from_json(text: &str) -> Result<StepTally> {
        let value: Value = serde_json::from_str(text)?;
        let count = |name: &str| value[name].as_u64().with_context(|| format!("no {name}: {text}"));
        let lines = value["left_out"].as_array().context("no left_out")?;
        let lines = lines.iter().filter_map(Value::as_str).map(str::to_owned);
        Ok(StepTally {
            passed: count("passed")?,
            failed: count("failed")?,
            note: value["note"].as_str().context("no note")?.to_owned(),
            left_out: lines.collect(),
        })
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_the_same_after_its_way_through_json() {
        let left_out = vec!["a".to_owned(), "b".to_owned()];
        let tally = StepTally { passed: 3, failed: 1, note: "so".to_owned(), left_out };
        assert_eq!(StepTally::from_json(&tally.to_json()).unwrap(), tally);
        assert!(StepTally::from_json("{}").is_err());
    }
}
