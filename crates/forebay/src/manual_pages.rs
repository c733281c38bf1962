//! Manual pages: one for each command, made from the command line definitions, and one for the settings file, made
//! from the example that lists every key.

use std::{fs, io, path::Path};

use clap::CommandFactory;
use control::Failure;

use crate::{
    cli::{Cli, ManArgs},
    output::{print, print_line},
};

/// The example settings file, which describes every key with its default.
const SETTINGS: &str = include_str!("../../../forebay.example.toml");

/// Prints the page of the program, or writes all pages below a folder.
pub fn run(args: &ManArgs) -> Result<(), Failure> {
    match &args.out {
        Some(folder) => write_all(folder),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(Failure::new)?;
            print(&page)
        }
    }
}

fn write_all(folder: &Path) -> Result<(), Failure> {
    let cannot = |path: &Path, error: io::Error| {
        Failure::new(format!("cannot write manual pages to {}: {error}", path.display())).remedy(
            "name a folder that you can write to, such as `--out /usr/local/share/man` as root",
        )
    };
    let [commands, files] = ["man1", "man5"].map(|section| folder.join(section));
    for section in [&commands, &files] {
        fs::create_dir_all(section).map_err(|error| cannot(section, error))?;
    }
    clap_mangen::generate_to(Cli::command(), &commands)
        .map_err(|error| cannot(&commands, error))?;
    let settings = files.join("forebay.toml.5");
    fs::write(&settings, settings_page()).map_err(|error| cannot(&settings, error))?;
    let count = fs::read_dir(&commands).map_err(|error| cannot(&commands, error))?.count();
    print_line(format!("{count} pages in {}, 1 in {}", commands.display(), files.display()))
}

fn settings_page() -> String {
    let example: String = SETTINGS.lines().map(|line| escaped(line) + "\n").collect();
    format!(
        ".TH forebay.toml 5\n\
         .SH NAME\n\
         forebay.toml \\- settings of forebay serve\n\
         .SH DESCRIPTION\n\
         A TOML file with every key, its unit and its default.\n\
         .B forebay check \\-\\-config FILE\n\
         shows what is wrong in a file, with line and column, and changes nothing.\n\
         .SH KEYS\n\
         .nf\n\
         {example}.fi\n\
         .SH SEE ALSO\n\
         .BR forebay (1),\n\
         .BR forebay\\-serve (1),\n\
         .BR forebay\\-check (1)\n"
    )
}

/// Escapes the characters of a line that have a meaning in roff.
fn escaped(line: &str) -> String {
    let escaped = line.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_roff_are_escaped() {
        assert_eq!(escaped(".a"), "\\&.a");
        assert_eq!(escaped("'a"), "\\&'a");
        assert_eq!(escaped("a-b\\c"), "a\\-b\\ec");
    }

    #[test]
    fn the_page_of_the_settings_has_every_line_of_the_example() {
        let page = settings_page();
        assert!(page.starts_with(".TH forebay.toml 5\n"));
        for line in SETTINGS.lines() {
            assert!(page.contains(&(escaped(line) + "\n")), "{line}");
        }
        let is_request = |line: &&str| line.starts_with('.') && !line.starts_with("\\&");
        assert_eq!(page.lines().filter(is_request).count(), 11);
    }
}
