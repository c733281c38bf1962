//! Makes the tables of figures from the types of crate `control`, which are the JSON of `forebay status --json`: name,
//! value with its unit, and the doc comment of each field.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use syn::{GenericArgument, PathArguments, Type};

use crate::doc_comment::{doc, items_in};

/// The path of the page on figures, and the title of its generated part.
pub const PAGE: &str = "docs/reference/figures.md";
pub const PART: &str = "Tables of figures";

/// A section of the page: the struct of crate `control`, the heading, and where the struct is in
/// the JSON.
type Section = (&'static str, &'static str, &'static str);

const SECTIONS: [Section; 23] = [
    ("CacheFigures", "Cache", "`figures` of a layer `cache`."),
    ("RemoteFigures", "Remote layer", "`figures` of a layer `remote`."),
    ("FileFigures", "File layer", "`figures` of a layer `file`."),
    ("ObserveFigures", "Observe layer", "`figures` of a layer `observe`."),
    ("ServingStatus", "Process", "The whole JSON."),
    ("ServingCounters", "Counters", "`counters` of a process, except of `forebay attach`."),
    ("PortalStatus", "Portal", "`portals[]` of a process."),
    ("TargetStatus", "Target", "`targets[]` of a process."),
    ("UnitStatus", "Unit", "`units[]` of a target."),
    ("LayerStatus", "Layer", "`layers[]` of a unit."),
    ("RefusedStatus", "Refused unit", "`refused[]` of a target."),
    ("PairStatus", "Pair", "`pair` of a target."),
    ("PairNvram", "NVRAM of a pair", "`nvram` of a pair."),
    ("ClaimStatus", "Claim", "`claim` of a unit."),
    ("ShareStatus", "Share", "`share` of a claim."),
    ("SessionStatus", "Session", "`sessions[]` of a process."),
    ("ConnectionStatus", "Connection", "`connections[]` of a session."),
    ("CompressionStatus", "Compression", "`compression` of a connection."),
    ("EnsembleStatus", "Ensemble", "`ensemble` of a session."),
    ("PathStatus", "Path", "`path` of an ensemble."),
    ("AttachedVolumeStatus", "Attached volume", "`attached` of `forebay attach`."),
    ("ResponseTimes", "Response times", "Each figure `time_…`."),
    ("PduLengths", "PDU sizes", "Each figure `pdus_…_by_size`."),
];

/// The last section: the JSON that `forebay gateway` prints, not `forebay status`.
const GATEWAY: Section =
    ("CacheControlStatus", "Answers of forebay gateway", "`forebay gateway … --json`.");

/// Types whose definition in crate `control` does not show their form in JSON: types of other crates, and enums that
/// serde writes without the name of the variant.
const FORMS: [(&str, &str); 4] = [
    ("Gln", "text"),
    ("LayerFigures", "object"),
    ("NamingProblem", "text"),
    ("ProcessCounters", "[Counters](#counters)"),
];

/// Pairs of the end of a figure's name, such as `_ms`, and the unit of such a figure. The first pair that matches the
/// name applies.
const UNITS: [(&str, &str); 13] = [
    ("rate", "bytes/s"),
    ("rate_limit", "bytes/s"),
    ("rate_bytes", "bytes/s"),
    ("rate_limit_bytes", "bytes/s"),
    ("bits_per_second", "bit/s"),
    ("bytes", "bytes"),
    ("_us", "µs"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("seconds", "s"),
    ("_percent", "%"),
    ("_segments", "segments"),
    ("_slots", "slots"),
];

/// Returns the tables of all figures for the source below `root`.
pub fn tables(root: &Path) -> Result<String> {
    let types = ControlTypes::of(items_in(&root.join("crates/control/src"))?);
    let sections = SECTIONS.iter().chain([&GATEWAY]);
    sections.map(|section| types.section(*section)).collect()
}

/// The types of the crate `control`, by their names.
#[derive(Default)]
struct ControlTypes {
    structs: BTreeMap<String, syn::ItemStruct>,
    enums: BTreeMap<String, syn::ItemEnum>,
    aliases: BTreeMap<String, syn::ItemType>,
}

impl ControlTypes {
    fn of(items: Vec<syn::Item>) -> Self {
        let mut types = Self::default();
        for item in items {
            match item {
                syn::Item::Struct(item) => {
                    types.structs.insert(item.ident.to_string(), item);
                }
                syn::Item::Enum(item) => {
                    types.enums.insert(item.ident.to_string(), item);
                }
                syn::Item::Type(item) => {
                    types.aliases.insert(item.ident.to_string(), item);
                }
                _ => {}
            }
        }
        types
    }

    /// Returns the section of a struct: heading, introduction and tables.
    fn section(&self, (name, heading, place): Section) -> Result<String> {
        let about = self.structs.get(name).map(|item| doc(&item.attrs)).unwrap_or_default();
        let introduction = format!("{place} {}", in_page(&about, false));
        let tables = self.tables(name).with_context(|| format!("struct {name}"))?;
        Ok(format!("\n## {heading}\n\n{}\n{tables}", introduction.trim_end()))
    }

    /// Returns a table of the fields of a struct, and then the tables of its flattened groups, each with a sentence.
    fn tables(&self, name: &str) -> Result<String> {
        let item = self.structs.get(name).context("there is no such struct")?;
        let (mut rows, mut groups) = (String::new(), String::new());
        for field in item.fields.iter().filter(|field| last_name(&field.ty) != "Map") {
            let figure = field.ident.as_ref().context("a field without a name")?.to_string();
            let (text, is_absent) =
                (doc(&field.attrs), has_serde(&field.attrs, "skip_serializing_if"));
            if has_serde(&field.attrs, "flatten") {
                let group = last_name(argument(&field.ty).unwrap_or(&field.ty));
                let about = self.structs.get(&group).map(|item| doc(&item.attrs));
                let text = if text.is_empty() { about.unwrap_or_default() } else { text };
                ensure!(!text.is_empty(), "the group {figure} has no doc comment");
                write!(groups, "\n{}\n{}", in_page(&text, true), self.tables(&group)?)?;
                continue;
            }
            ensure!(!text.is_empty(), "the figure {figure} has no doc comment");
            let value = self.value(&figure, &field.ty, is_absent)?;
            writeln!(rows, "| `{figure}` | {value} | {} |", in_page(&text, is_absent))?;
        }
        let head = "\n| figure | value | meaning |\n|---|---|---|\n";
        Ok(if rows.is_empty() { groups } else { format!("{head}{rows}{groups}") })
    }

    /// Returns the JSON type and the unit of a figure.
    fn value(&self, figure: &str, of: &Type, is_absent: bool) -> Result<String> {
        let name = last_name(of);
        let inner = |of: &Type| {
            let inner = argument(of).with_context(|| format!("{figure} has no inner type"))?;
            self.value(figure, inner, is_absent)
        };
        if let Some(alias) = self.aliases.get(&name) {
            return self.value(figure, &alias.ty, is_absent);
        }
        if let Some((_, heading, _)) = SECTIONS.iter().find(|(section, ..)| *section == name) {
            return Ok(format!("[{heading}](#{})", heading.to_lowercase().replace(' ', "-")));
        }
        if let Some((_, form)) = FORMS.iter().find(|(known, _)| *known == name) {
            return Ok((*form).to_owned());
        }
        if let Some(item) = self.enums.get(&name) {
            return Ok(in_words(item));
        }
        Ok(match name.as_str() {
            "Option" if is_absent => inner(of)?,
            "Option" => format!("{} or null", inner(of)?),
            "Box" => inner(of)?,
            "Vec" => format!("list: {}", inner(of)?),
            "BTreeMap" => format!("by name: {}", inner(of)?),
            "bool" => "true or false".to_owned(),
            "String" | "PathBuf" => "text".to_owned(),
            "u8" | "u16" | "u32" | "u64" | "usize" | "f64" => unit(figure).to_owned(),
            _ if matches!(of, Type::Tuple(_)) => "pair of numbers".to_owned(),
            _ => bail!("the type {name} of {figure} has no section in figure_tables.rs"),
        })
    }
}

/// Returns the unit that the name of a figure ends with; "number" without a unit.
fn unit(figure: &str) -> &'static str {
    let unit = UNITS.iter().find(|(end, _)| figure.ends_with(end));
    unit.map_or("number", |(_, unit)| unit)
}

/// Returns the texts as which serde writes the variants of an enum. If they are not known here, returns "text": the doc
/// comment of the figure explains them.
fn in_words(item: &syn::ItemEnum) -> String {
    if !has_serde(&item.attrs, "\"lowercase\"") {
        return "text".to_owned();
    }
    let words = item.variants.iter().map(|v| format!("`{}`", v.ident.to_string().to_lowercase()));
    words.collect::<Vec<_>>().join(", ")
}

/// Changes a doc comment for the page: readers of JSON see no `None`, but null or no field at all.
fn in_page(text: &str, is_absent: bool) -> String {
    text.replace("`None`", if is_absent { "absent" } else { "null" }).replace('|', "\\|")
}

/// Returns true if an attribute `serde(...)` contains a word.
fn has_serde(attributes: &[syn::Attribute], word: &str) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("serde") => {
            list.tokens.clone().into_iter().any(|token| token.to_string() == word)
        }
        _ => false,
    })
}

/// Returns the last name in the path of a type; an empty string for a type without a path.
fn last_name(of: &Type) -> String {
    let Type::Path(of) = of else { return String::new() };
    of.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Returns the last generic argument of a type.
fn argument(of: &Type) -> Option<&Type> {
    let Type::Path(of) = of else { return None };
    let PathArguments::AngleBracketed(arguments) = &of.path.segments.last()?.arguments else {
        return None;
    };
    match arguments.args.last()? {
        GenericArgument::Type(inner) => Some(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables_of(source: &str) -> Result<String> {
        ControlTypes::of(syn::parse_file(source).unwrap().items).tables("Figures")
    }

    #[test]
    fn a_figure_has_its_unit_and_a_group_its_own_table() {
        let source = "struct Figures { #[serde(flatten)] group: Option<Group>, \
            /// Time until then; `None` if never.\n log_lasts_s: Option<u64>,\n \
            /// The state.\n state: State }\n \
            /// A group, `None` without a log.\n struct Group { \
            /// Sent per second.\n rate: u64 }\n #[serde(rename_all = \"lowercase\")] enum State { Up, Down }";
        let expected = "\n| figure | value | meaning |\n|---|---|---|\n\
            | `log_lasts_s` | s or null | Time until then; null if never. |\n\
            | `state` | `up`, `down` | The state. |\n\
            \nA group, absent without a log.\n\
            \n| figure | value | meaning |\n|---|---|---|\n| `rate` | bytes/s | Sent per second. |\n";
        assert_eq!(tables_of(source).unwrap(), expected);
    }

    #[test]
    fn a_figure_without_a_doc_comment_or_with_an_unknown_type_is_an_error() {
        let error = |source| tables_of(source).unwrap_err().to_string();
        assert_eq!(error("struct Figures { a: u64 }"), "the figure a has no doc comment");
        let unknown = error("struct Figures { /** A. */ a: Other }");
        assert!(unknown.starts_with("the type Other of a has no section"), "{unknown}");
    }
}
