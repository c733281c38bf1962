//! Measures the structure of the source (lines of files and functions, fields of structs, types of
//! one name) and compares each value with its bound.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, ensure};

use crate::check::exceptions::{self, Exceptions};
use crate::check::method_circles;
use crate::check::sizes;
use crate::check::tree::SourceTree;
use crate::check::type_names;

/// An upper bound on one property of the source, such as the lines of a file.
struct SourceBound {
    /// The section of `exceptions.toml` that lists the permitted exceptions from this bound.
    key: &'static str,
    /// The measured property (such as the lines of a file), as the check prints it.
    what: &'static str,
    bound: usize,
    /// The kinds of items that may exceed the bound permanently.
    exempt: &'static [ExemptionKind],
}

/// A kind of items that may exceed a bound permanently. The list of exceptions gives a reason for
/// each item.
struct ExemptionKind {
    /// The section of `exceptions.toml` that lists the exempt items of this kind.
    section: &'static str,
    /// Maximum number of items that may be exempt.
    most: usize,
}

/// Exempt from the bound on fields: structs that have a field for each key of a settings file or for each option of a
/// command.
const SETTINGS: ExemptionKind = ExemptionKind { section: "settings", most: usize::MAX };

/// Exempt from the bound on fields: structs with the fields of a record that is defined elsewhere: on disk, on the wire
/// or in the kernel.
const RECORDS: ExemptionKind = ExemptionKind { section: "records", most: usize::MAX };

/// Functions whose body is a single table, which may exceed the bound on lines.
const TABLES: ExemptionKind = ExemptionKind { section: "tables", most: 5 };

/// Exempt from the bound on types with the same name: names that several crates use by convention, such as `Error`,
/// each for one type of its own.
const TYPE_NAMES: ExemptionKind = ExemptionKind { section: "type_names", most: 10 };

const FILE_LINES: SourceBound =
    SourceBound { key: "file_lines", what: "lines of a file", bound: 600, exempt: &[] };

const FUNCTION_LINES: SourceBound = SourceBound {
    key: "function_lines",
    what: "lines of a function",
    bound: 70,
    exempt: &[TABLES],
};

const STRUCT_FIELDS: SourceBound = SourceBound {
    key: "struct_fields",
    what: "fields of a struct",
    bound: 15,
    exempt: &[SETTINGS, RECORDS],
};

const TRAIT_METHODS: SourceBound =
    SourceBound { key: "trait_methods", what: "methods of a trait", bound: 8, exempt: &[] };

/// The bound on the methods of trait `Volume`. Every layer implements this trait, so the bound is
/// lower than for other traits.
const VOLUME_METHODS: SourceBound =
    SourceBound { key: "volume_methods", what: "methods of `Volume`", bound: 7, exempt: &[] };

const CIRCLE_FILES: SourceBound = SourceBound {
    key: "method_circles",
    what: "files in a circle through the methods of a type",
    bound: 0,
    exempt: &[],
};

const TYPE_NAME_USES: SourceBound = SourceBound {
    key: "type_name_uses",
    what: "types with one name",
    bound: 3,
    exempt: &[TYPE_NAMES],
};

const REPEATED_TYPE_NAMES: SourceBound = SourceBound {
    key: "repeated_type_names",
    what: "names that several types have",
    bound: 100,
    exempt: &[],
};

/// A bound, and the name and measured value of each item of the source to which the bound applies.
type BoundMeasurements = (&'static SourceBound, Vec<(String, usize)>);

/// Checks the source against the bounds and the list of exceptions.
pub fn check(root: &Path) -> Result<String> {
    let listed = Exceptions::read(root)?;
    let tree = SourceTree::read(root)?;
    let measured = measure(&tree);
    for (rule, values) in &measured {
        println!("{}", summary(rule, values, &listed));
    }
    let mut wrong = all_violations(&measured, &listed);
    if !wrong.is_empty() {
        let permitted = listed.of(CIRCLE_FILES.key);
        wrong.extend(method_circles::find(&tree).iter().flat_map(|circle| {
            let is_new = permitted.get(&circle.name) != Some(&circle.files.len());
            circle
                .calls
                .iter()
                .filter(move |_| is_new)
                .map(|call| format!("{}: {call}", circle.name))
        }));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    exceptions::check_history(root, &listed)?;
    let exceptions: usize = measured.iter().map(|(rule, _)| listed.of(rule.key).len()).sum();
    Ok(format!("{} bounds hold, but for {exceptions} exceptions", measured.len()))
}

/// Lowers the values in the list of exceptions to the measured ones, and removes entries that are no longer needed. If
/// there is no list, writes a new one with every item that exceeds a bound.
pub fn shrink(root: &Path) -> Result<()> {
    let is_new = !root.join(exceptions::FILE).exists();
    let listed = Exceptions::read(root)?;
    let mut lowered = listed.clone();
    for (rule, values) in measure(&SourceTree::read(root)?) {
        let before = listed.of(rule.key);
        let needed = exceeding(rule, &values, &listed).filter_map(|(name, value)| {
            let most = before.get(name).copied().or(is_new.then_some(usize::MAX))?;
            Some((name.clone(), value.min(most)))
        });
        lowered.set(rule.key, needed.collect());
    }
    lowered.write(root)
}

fn measure(tree: &SourceTree) -> Vec<BoundMeasurements> {
    let sizes = sizes::measure(tree);
    let (volume, others): (Vec<_>, Vec<_>) = sizes
        .trait_methods
        .into_iter()
        .partition(|(name, _)| name == "crates/volume/src/volume.rs Volume");
    let circles = method_circles::find(tree);
    let circles = circles.into_iter().map(|circle| (circle.name, circle.files.len())).collect();
    let names: Vec<(String, usize)> = type_names::count(tree).into_iter().collect();
    let repeated = names.iter().filter(|(_, uses)| *uses > 1).count();
    vec![
        (&FILE_LINES, sizes.file_lines),
        (&FUNCTION_LINES, sizes.function_lines),
        (&STRUCT_FIELDS, sizes.struct_fields),
        (&VOLUME_METHODS, volume),
        (&TRAIT_METHODS, others),
        (&CIRCLE_FILES, circles),
        (&TYPE_NAME_USES, names),
        (&REPEATED_TYPE_NAMES, vec![("all".to_owned(), repeated)]),
    ]
}

/// Returns the values that exceed a bound and are not exempt.
fn exceeding<'a>(
    rule: &'static SourceBound,
    values: &'a [(String, usize)],
    listed: &Exceptions,
) -> impl Iterator<Item = (&'a String, usize)> {
    let exempt = exempt(rule, listed);
    values
        .iter()
        .filter(move |(name, value)| *value > rule.bound && !exempt.contains(name))
        .map(|(name, value)| (name, *value))
}

/// Returns the names of the items to which this bound does not apply.
fn exempt(rule: &SourceBound, listed: &Exceptions) -> BTreeSet<String> {
    rule.exempt.iter().flat_map(|kind| listed.exempt(kind.section)).cloned().collect()
}

/// Returns the line for this bound in the table that the check prints.
fn summary(rule: &'static SourceBound, values: &[(String, usize)], listed: &Exceptions) -> String {
    let most = values.iter().map(|(_, value)| *value).max().unwrap_or(0);
    let count = exceeding(rule, values, listed).count();
    format!(
        "  {:<48} bound {:>4}, most {most:>4}, {count:>3} above the bound, {} exempt",
        rule.what,
        rule.bound,
        exempt(rule, listed).len()
    )
}

/// Returns a sentence for each violation of a bound, and for each error in the list of exceptions.
fn all_violations(measured: &[BoundMeasurements], listed: &Exceptions) -> Vec<String> {
    let mut wrong = vec![];
    for (rule, values) in measured {
        wrong.extend(violations(rule, values, listed));
        wrong.extend(needless_exemptions(rule, values, listed));
    }
    let is_known = |section: &str| {
        measured.iter().any(|(rule, _)| {
            rule.key == section || rule.exempt.iter().any(|kind| kind.section == section)
        })
    };
    let unknown = listed.sections().filter(|section| !is_known(section));
    wrong.extend(unknown.map(|section| format!("{}: no rule has [{section}]", exceptions::FILE)));
    wrong
}

/// Returns a sentence for each item that is listed as exempt but does not exceed the bound, and for each kind of
/// exemption that has too many items.
fn needless_exemptions(
    rule: &'static SourceBound,
    values: &[(String, usize)],
    listed: &Exceptions,
) -> Vec<String> {
    let is_needed =
        |name: &str| values.iter().any(|(other, value)| other == name && *value > rule.bound);
    let mut wrong = vec![];
    for kind in rule.exempt {
        let count = listed.exempt(kind.section).count();
        if count > kind.most {
            wrong.push(format!(
                "{}: [{}] has {count} items, at most {}",
                exceptions::FILE,
                kind.section,
                kind.most
            ));
        }
        let needless = listed.exempt(kind.section).filter(|name| !is_needed(name));
        wrong.extend(needless.map(|name| {
            format!(
                "{}: {name} in [{}] does not exceed the bound of {}: remove it",
                exceptions::FILE,
                kind.section,
                rule.what
            )
        }));
    }
    wrong
}

/// Returns a sentence for each value that exceeds the bound and its exception, and for each exception that is larger
/// than needed.
fn violations(
    rule: &'static SourceBound,
    values: &[(String, usize)],
    listed: &Exceptions,
) -> Vec<String> {
    // If a file has two items of the same name, they share one entry in the list of exceptions, with the larger of
    // their two values.
    let mut above: BTreeMap<&String, usize> = BTreeMap::new();
    for (name, value) in exceeding(rule, values, listed) {
        let most = above.entry(name).or_default();
        *most = value.max(*most);
    }
    let listed = listed.of(rule.key);
    let mut wrong = vec![];
    for (name, value) in &above {
        let permitted = listed.get(*name).copied().unwrap_or(rule.bound);
        if *value > permitted {
            wrong.push(format!("{name}: {value} {}, at most {permitted}", rule.what));
        }
    }
    for (name, permitted) in &listed {
        let needed = above.get(name).copied().unwrap_or(0);
        if needed < *permitted {
            wrong.push(format!(
                "{}: the exception of {name} permits {permitted} {}, {needed} are needed: run `cargo xtask check --shrink`",
                exceptions::FILE,
                rule.what
            ));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tree::tree_of;

    /// Returns the violations of all bounds in these files, without any exceptions.
    fn violations_of(sources: &[(&str, &str)]) -> Vec<String> {
        all_violations(&measure(&tree_of(sources)), &Exceptions::default())
    }

    fn check(text: &str, expected: &[&str]) {
        assert_eq!(violations_of(&[("crates/a/src/lib.rs", text)]), expected);
    }

    #[test]
    fn a_planted_violation_of_each_bound_is_named() {
        check("struct A;\n", &[]);
        let long = "\n".repeat(601);
        check(&long, &["crates/a/src/lib.rs: 601 lines of a file, at most 600"]);
        let long = format!("fn f() {{{}}}", "\n".repeat(70));
        check(&long, &["crates/a/src/lib.rs f: 71 lines of a function, at most 70"]);
        let fields: String = (0..16).map(|n| format!("f{n}: u8,")).collect();
        let wide = format!("struct A {{{fields}}}");
        check(&wide, &["crates/a/src/lib.rs A: 16 fields of a struct, at most 15"]);
        let methods = |count| (0..count).map(|n| format!("fn f{n}();")).collect::<String>();
        let wide = format!("trait A {{{}}}", methods(9));
        check(&wide, &["crates/a/src/lib.rs A: 9 methods of a trait, at most 8"]);
        let names =
            "mod a { struct X; } mod b { struct X; } mod c { struct X; } mod d { struct X; }";
        check(names, &["X: 4 types with one name, at most 3"]);
        let volume = format!("trait Volume {{{}}}", methods(8));
        let wrong = violations_of(&[("crates/volume/src/volume.rs", &volume)]);
        assert_eq!(wrong, ["crates/volume/src/volume.rs Volume: 8 methods of `Volume`, at most 7"]);
    }

    #[test]
    fn a_circle_through_methods_and_too_many_repeated_names_are_named() {
        let wrong = violations_of(&[
            ("crates/a/src/lib.rs", "struct A;"),
            ("crates/a/src/b.rs", "impl A { fn b(&self) { self.c() } }"),
            ("crates/a/src/c.rs", "impl A { fn c(&self) { self.b() } }"),
        ]);
        let circle = "crates/a A: 2 files in a circle through the methods of a type, at most 0";
        assert_eq!(wrong, [circle]);
        let types = |_| (0..101).map(|n| format!("struct A{n};")).collect::<String>();
        let [a, b] = ["a", "b"].map(types);
        let wrong = violations_of(&[("crates/a/src/lib.rs", &a), ("crates/b/src/lib.rs", &b)]);
        assert_eq!(wrong, ["all: 101 names that several types have, at most 100"]);
    }

    #[test]
    fn an_exception_permits_what_it_says_and_may_not_be_larger_than_needed() {
        let check = |value: usize, listed: usize| {
            let listed = Exceptions::parse(&format!("[file_lines]\n\"a.rs\" = {listed}")).unwrap();
            violations(&FILE_LINES, &[("a.rs".to_owned(), value)], &listed).len()
        };
        assert_eq!(
            [check(700, 700), check(701, 700), check(699, 700), check(600, 700)],
            [0, 1, 1, 1]
        );
    }

    #[test]
    fn only_listed_items_of_the_right_kind_are_exempt() {
        let fields: String = (0..16).map(|n| format!("f{n}: u8,")).collect();
        let text = format!("struct A {{{fields}}}\nfn f() {{{}}}", "\n".repeat(70));
        let measured = measure(&tree_of(&[("crates/a/src/lib.rs", &text)]));
        let wrong = |list: &str| all_violations(&measured, &Exceptions::parse(list).unwrap());
        let (a, f) = ("\"crates/a/src/lib.rs A\" = \"r\"\n", "\"crates/a/src/lib.rs f\" = \"r\"\n");
        assert_eq!(wrong(&format!("[records]\n{a}[tables]\n{f}")), [""; 0]);
        assert_eq!(wrong(&format!("[settings]\n{a}[tables]\n{f}")), [""; 0]);
        // The entries of the struct and of the function are in the wrong sections: the struct under tables, the
        // function under records. Neither item is exempt then, and both entries are reported as needless.
        assert_eq!(wrong(&format!("[records]\n{f}[tables]\n{a}")).len(), 4);
    }

    #[test]
    fn needless_exemptions_too_many_tables_and_unknown_sections_are_named() {
        let long = |n| format!("fn f{n}() {{{}}}\n", "\n".repeat(70));
        let text: String = (0..6).map(long).collect();
        let measured = measure(&tree_of(&[("crates/a/src/lib.rs", &text)]));
        let wrong = |list: &str| all_violations(&measured, &Exceptions::parse(list).unwrap());
        let table = |n| format!("\"crates/a/src/lib.rs f{n}\" = \"rows\"\n");
        let tables: String = (0..6).map(table).collect();
        let list = "crates/xtask/exceptions.toml";
        let too_many = format!("{list}: [tables] has 6 items, at most 5");
        assert_eq!(wrong(&format!("[tables]\n{tables}")), [too_many]);
        let gone = format!("[tables]\n{}[lists]\n\"g\" = \"rows\"\n", table(7));
        let wrong = wrong(&gone);
        let needless = format!(
            "{list}: crates/a/src/lib.rs f7 in [tables] does not exceed the bound of lines of a function: remove it"
        );
        assert!(wrong.contains(&needless), "{wrong:?}");
        assert!(wrong.contains(&format!("{list}: no rule has [lists]")), "{wrong:?}");
    }
}
