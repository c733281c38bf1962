//! `forebay check`: reads settings and looks at what they name, without changing anything.

use std::{path::Path, sync::Arc};

use volume::{FileVolume, OpenError, Options, Stack};

use crate::{
    failure::{FAILED, Failure},
    output::print_line,
    quantity::about,
    settings::{Layer, Settings},
    stack,
};

/// Prints a line for each thing looked at; fails if one of them would stop `serve`.
pub async fn run(config: &Path) -> Result<(), Failure> {
    let settings = Settings::load(config)?;
    print_line(format_args!("{}: the settings are right", config.display()))?;
    let mut wrong = 0;
    for target in &settings.target {
        for unit in &target.unit {
            for layer in &unit.stack {
                let place = format!("{} LUN {}", target.name, unit.lun);
                match look_at(layer).await {
                    Ok(None) => {}
                    Ok(Some(found)) => print_line(format_args!("{place}: {found}"))?,
                    Err(failure) => {
                        print_line(format_args!("{place}: {failure}"))?;
                        wrong += 1;
                    }
                }
            }
        }
    }
    if wrong == 0 {
        return Ok(());
    }
    let message = format!("{wrong} of the layers cannot be opened as they are");
    Err(Failure { message, remedy: Some("see the lines above".into()), code: FAILED })
}

/// What is found, or why `serve` would refuse it.
async fn look_at(layer: &Layer) -> Result<Option<String>, Failure> {
    match layer {
        Layer::File(file) => {
            let mut options = stack::options(file);
            if !file.path.exists() && file.size.is_some() {
                return Ok(Some(format!("{} would be made", file.path.display())));
            }
            options.preallocate = false;
            options.read_only = true;
            let Some(volume) = open(&options)? else { return Ok(Some(in_use(&file.path))) };
            let size = about(volume.geometry().bytes());
            Ok(Some(format!("{} holds {size}", file.path.display())))
        }
        Layer::Cache(settings) => {
            let mut options = stack::log_options(settings);
            if !settings.log.exists() && settings.log_size.is_some() {
                return Ok(Some(format!("the log {} would be made", settings.log.display())));
            }
            options.preallocate = false;
            options.read_only = true;
            let Some(volume) = open(&options)? else { return Ok(Some(in_use(&settings.log))) };
            stack::describe_log(settings, &volume).await.map(Some)
        }
        _ => Ok(None),
    }
}

/// The file for reading; nothing if somebody serves it.
fn open(options: &Options) -> Result<Option<Stack>, Failure> {
    match FileVolume::open(options) {
        Ok(volume) => Ok(Some(Arc::new(volume))),
        Err(OpenError::InUse(_)) => Ok(None),
        Err(error) => Err(stack::refusal(&error)),
    }
}

fn in_use(path: &Path) -> String {
    format!("{} is in use: ask who serves it with `forebay status`", path.display())
}
