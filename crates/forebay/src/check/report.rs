//! The results of `forebay check`, as lines or as JSON.

use control::{FAILED, Failure};
use serde_json::{Value, json};

use crate::output::print_line;

/// Prints the result of each check, and counts the problems in `wrong`.
#[derive(Default)]
pub struct SettingsCheckReport {
    wrong: usize,
    /// The process that answers on the control socket of these settings.
    pub running: Option<u32>,
    /// True if the results are printed as JSON at the end.
    pub json: bool,
    checks: Vec<Value>,
    pub drives: Vec<Value>,
}

impl SettingsCheckReport {
    pub fn new(json: bool, running: Option<u32>) -> Self {
        Self { json, running, ..Self::default() }
    }

    pub fn say(&mut self, place: &str, found: Result<String, Failure>) -> Result<(), Failure> {
        self.wrong += usize::from(found.is_err());
        if self.json {
            self.checks.push(match found {
                Ok(found) => json!({ "place": place, "ok": true, "message": found }),
                Err(Failure { message, remedy, .. }) => {
                    json!({ "place": place, "ok": false, "message": message, "remedy": remedy })
                }
            });
            return Ok(());
        }
        match found {
            Ok(found) => print_line(format_args!("{place}: {found}")),
            Err(failure) => print_line(format_args!("{place}: {failure}")),
        }
    }

    pub fn end(self) -> Result<(), Failure> {
        if self.json {
            let Self { wrong, checks, drives, .. } = &self;
            print_line(json!({ "wrong": wrong, "checks": checks, "drives": drives }))?;
        }
        if self.wrong == 0 {
            return Ok(());
        }
        let message = format!("{} of these things cannot be used as they are", self.wrong);
        Err(Failure { message, remedy: Some("see the lines above".into()), code: FAILED })
    }
}
