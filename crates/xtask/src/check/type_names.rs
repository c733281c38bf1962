//! Counts the types of the program that share a name with another type.

use std::collections::BTreeMap;

use syn::Item;

use crate::check::tree::{SourceTree, is_test_only};

/// Returns, for each name of a struct, enum, union, trait or type alias, how many types of the program have it. Types of
/// tests do not count.
pub fn count(tree: &SourceTree) -> BTreeMap<String, usize> {
    let mut names = BTreeMap::new();
    for file in tree.program() {
        add(&file.syntax.items, &mut names);
    }
    names
}

fn add(items: &[Item], names: &mut BTreeMap<String, usize>) {
    for item in items {
        let (name, attributes) = match item {
            Item::Struct(item) => (&item.ident, &item.attrs),
            Item::Enum(item) => (&item.ident, &item.attrs),
            Item::Union(item) => (&item.ident, &item.attrs),
            Item::Trait(item) => (&item.ident, &item.attrs),
            Item::Type(item) => (&item.ident, &item.attrs),
            Item::Mod(module) if !is_test_only(&module.attrs) => {
                add(module.content.as_ref().map_or(&[], |(_, items)| items), names);
                continue;
            }
            _ => continue,
        };
        if !is_test_only(attributes) {
            *names.entry(name.to_string()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tree::tree_of;

    #[test]
    fn types_of_all_crates_and_kinds_count_and_those_of_tests_do_not() {
        let names = count(&tree_of(&[
            ("crates/a/src/lib.rs", "struct State;\nmod b { enum State {} }\ntrait Lower {}"),
            ("crates/b/src/lib.rs", "type State = u8;\n#[cfg(test)]\nmod tests { struct State; }"),
            ("crates/b/tests/all.rs", "struct State;"),
        ]));
        let expected = [("Lower".to_owned(), 1), ("State".to_owned(), 3)];
        assert_eq!(names.into_iter().collect::<Vec<_>>(), expected);
    }
}
