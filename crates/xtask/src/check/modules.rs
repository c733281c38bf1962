//! Checks the order of modules. The root of a crate lists its modules, lowest first, and a module
//! uses only modules listed before it. The list is therefore the reading order, and no two modules
//! need each other.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::check::source;

/// Checks every crate in a folder of crates.
pub fn check(crates: &Path) -> Result<String> {
    let mut wrong = vec![];
    let mut files = 0;
    for entry in fs::read_dir(crates).with_context(|| crates.display().to_string())? {
        let src = entry?.path().join("src");
        for root in ["lib.rs", "main.rs"].map(|name| src.join(name)) {
            if root.exists() {
                files +=
                    check_crate(&root, &mut wrong).with_context(|| root.display().to_string())?;
            }
        }
    }
    wrong.sort();
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(format!("{files} files, every module uses only modules listed before it"))
}

fn check_crate(root: &Path, wrong: &mut Vec<String>) -> Result<usize> {
    let src = root.parent().context("a crate root without a folder")?;
    let text = source::code(&fs::read_to_string(root)?)?;
    let order = ModuleOrder::read(&text);
    let mut count = 0;
    for module in &order.modules {
        for (file, depth) in files(src, module)? {
            count += 1;
            let text = fs::read_to_string(&file)?;
            let code = source::code(&text).with_context(|| file.display().to_string())?;
            for used in order.above(module, &code, depth) {
                let root = root.file_name().unwrap_or_default().display();
                wrong.push(format!(
                    "{} uses {used}, which stands after {module} in {root}",
                    file.display()
                ));
            }
        }
    }
    Ok(count)
}

/// The modules of a crate in the order of its root, and for each name that the root re-exports, the position of the
/// module that defines it.
struct ModuleOrder {
    modules: Vec<String>,
    exports: HashMap<String, usize>,
}

impl ModuleOrder {
    /// Parses the code of a crate root: the order of its modules, and the names that it re-exports.
    fn read(root: &str) -> ModuleOrder {
        let code = source::without_tests(root);
        let modules: Vec<String> =
            code.lines().filter_map(source::declared_module).map(str::to_owned).collect();
        let mut exports = HashMap::new();
        for statement in code.split("pub use ").skip(1).chain(code.split("pub(crate) use ").skip(1))
        {
            let Some((path, _)) = statement.split_once(';') else { continue };
            let path = path.trim().trim_start_matches("crate::").trim_start_matches("self::");
            let Some((module, names)) = path.split_once("::") else { continue };
            let Some(place) = modules.iter().position(|name| name == module.trim()) else {
                continue;
            };
            let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
            exports
                .extend(names.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), place)));
        }
        ModuleOrder { modules, exports }
    }

    /// Returns the names that a file of `module` uses from modules after its own. `depth` is the
    /// number of `super::` from the file to the crate root.
    fn above(&self, module: &str, code: &str, depth: usize) -> Vec<String> {
        let code = source::without_tests(code);
        let own = self.place(module);
        let roots = ["crate::".to_owned(), "super::".repeat(depth)];
        let mut above: Vec<String> = roots
            .iter()
            .flat_map(|root| first_segments(&code, root))
            .filter(|name| self.place(name) > own)
            .map(str::to_owned)
            .collect();
        above.sort();
        above.dedup();
        above
    }

    fn place(&self, name: &str) -> Option<usize> {
        let module = self.modules.iter().position(|module| module == name);
        module.or_else(|| self.exports.get(name).copied())
    }
}

/// Returns the segment after `root` in each path of the code that begins with `root`: for `crate::` the module names.
fn first_segments<'a>(code: &'a str, root: &str) -> Vec<&'a str> {
    let mut names = vec![];
    for (at, _) in code.match_indices(root) {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + root.len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(group_members(group)),
            None => names.push(segment(rest)),
        }
    }
    names.retain(|name| !name.is_empty() && *name != "super");
    names
}

/// Returns the first segments of the members of a use group, whose opening brace has been read.
fn group_members(group: &str) -> Vec<&str> {
    let mut names = vec![];
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' | ',' if depth == 0 => {
                names.push(segment(&group[start..at]));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    names
}

fn segment(path: &str) -> &str {
    let path = path.trim_start();
    let end = path.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(path.len());
    &path[..end]
}

/// Returns the files of a module with their depth below the crate root, without files that only
/// tests compile.
fn files(src: &Path, module: &str) -> Result<Vec<(PathBuf, usize)>> {
    let mut found = vec![];
    let mut open = vec![(src.to_owned(), module.to_owned(), 1)];
    while let Some((folder, name, depth)) = open.pop() {
        let own = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
        let Some(file) = own.into_iter().find(|file| file.exists()) else { continue };
        let code = source::code(&fs::read_to_string(&file)?)?;
        found.push((file, depth));
        let code = source::without_tests(&code);
        let children = code.lines().filter_map(source::declared_module);
        open.extend(children.map(|child| (folder.join(&name), child.to_owned(), depth + 1)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "//! mod zero;\nmod serial;\npub mod pdu;\npub(crate) mod codec;\n\
        pub use pdu::{Itt, Pdu};\npub use codec::Decoder;\n#[cfg(test)] mod harness;\n";

    fn above(module: &str, text: &str, depth: usize) -> Vec<String> {
        let code = source::code(text).unwrap();
        ModuleOrder::read(&source::code(ROOT).unwrap()).above(module, &code, depth)
    }

    #[test]
    fn a_module_may_use_modules_declared_before_it() {
        assert_eq!(above("codec", "use crate::{Itt, pdu::{A, codec}, serial};", 1), [""; 0]);
        assert_eq!(above("pdu", "use super::Pdu; // crate::codec", 2), [""; 0]);
    }

    #[test]
    fn a_module_after_its_own_is_named() {
        assert_eq!(above("pdu", "use crate::codec::X;", 1), ["codec"]);
        assert_eq!(
            above("serial", "use crate::{\n    pdu::{A, B},\n    codec,\n};", 1),
            ["codec", "pdu"]
        );
        assert_eq!(above("pdu", "fn a() { super::codec::b() }", 1), ["codec"]);
        assert_eq!(above("pdu", "fn a() { super::super::codec::b() }", 2), ["codec"]);
    }

    #[test]
    fn a_re_exported_name_counts_as_its_module() {
        assert_eq!(above("serial", "use crate::Itt;", 1), ["Itt"]);
        assert_eq!(above("pdu", "fn a(b: crate::Decoder) {}", 1), ["Decoder"]);
    }

    #[test]
    fn tests_and_words_are_exempt() {
        let text = "/* crate::codec */ const A: &str = \"crate::codec\";\n\
            #[cfg(test)]\nmod tests { use crate::codec::X; }";
        assert_eq!(above("pdu", text, 1), [""; 0]);
    }

    #[test]
    fn a_crate_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let src = dir.path().join("bad/src");
        fs::create_dir_all(src.join("low")).unwrap();
        fs::write(src.join("lib.rs"), "mod low;\nmod high;\n").unwrap();
        fs::write(src.join("low.rs"), "mod deep;\n#[cfg(test)] mod tests;\n").unwrap();
        fs::write(src.join("low/deep.rs"), "use crate::low;\n").unwrap();
        fs::write(src.join("low/tests.rs"), "use crate::high;\n").unwrap();
        fs::write(src.join("high.rs"), "use crate::low::deep;\n").unwrap();
        assert!(check(dir.path()).unwrap().starts_with("3 files"));
        fs::write(src.join("low/deep.rs"), "use super::super::high;\n").unwrap();
        let error = check(dir.path()).unwrap_err().to_string();
        assert!(
            error.ends_with("low/deep.rs uses high, which stands after low in lib.rs"),
            "{error}"
        );
    }
}
