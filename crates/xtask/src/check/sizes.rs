//! Measures lengths of files and functions, fields of structs and methods of traits.

use syn::visit::{self, Visit};
use syn::{Block, Fields, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemStruct, ItemTrait, Signature};
use syn::{TraitItem, TraitItemFn, Type};

use crate::check::tree::{SourceFile, SourceTree};

/// The measured values of a source tree. Names are paths of files, followed by the name of the item where there is one.
#[derive(Default)]
pub struct SourceSizes {
    pub file_lines: Vec<(String, usize)>,
    /// The number of lines of each function with a body, from its `fn` to its closing brace.
    pub function_lines: Vec<(String, usize)>,
    pub struct_fields: Vec<(String, usize)>,
    pub trait_methods: Vec<(String, usize)>,
}

pub fn measure(tree: &SourceTree) -> SourceSizes {
    let mut sizes = SourceSizes::default();
    for file in &tree.files {
        sizes.file_lines.push((file.path.clone(), file.lines));
        let mut visitor = SourceSizeVisitor { file, owners: vec![], sizes: &mut sizes };
        visitor.visit_file(&file.syntax);
    }
    sizes
}

struct SourceSizeVisitor<'a> {
    file: &'a SourceFile,
    /// The modules, types and traits around the item that is visited.
    owners: Vec<String>,
    sizes: &'a mut SourceSizes,
}

impl SourceSizeVisitor<'_> {
    fn name(&self, item: impl ToString) -> String {
        let path = [self.owners.as_slice(), &[item.to_string()]].concat().join("::");
        format!("{} {path}", self.file.path)
    }

    fn function(&mut self, signature: &Signature, body: &Block) {
        let start = signature.fn_token.span.start().line;
        let lines = body.brace_token.span.close().end().line + 1 - start;
        self.sizes.function_lines.push((self.name(&signature.ident), lines));
    }

    /// Runs `visit` with `owner` as the innermost item around the items that are visited.
    fn inside(&mut self, owner: String, visit: impl FnOnce(&mut Self)) {
        self.owners.push(owner);
        visit(self);
        self.owners.pop();
    }
}

impl<'ast> Visit<'ast> for SourceSizeVisitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.inside(item.ident.to_string(), |inside| visit::visit_item_mod(inside, item));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let owner = match &*item.self_ty {
            Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        let owner = owner.unwrap_or_else(|| "impl".to_owned());
        self.inside(owner, |inside| visit::visit_item_impl(inside, item));
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        let is_method = |item: &&TraitItem| matches!(item, TraitItem::Fn(_));
        let methods = item.items.iter().filter(is_method).count();
        self.sizes.trait_methods.push((self.name(&item.ident), methods));
        self.inside(item.ident.to_string(), |inside| visit::visit_item_trait(inside, item));
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if let Fields::Named(fields) = &item.fields {
            self.sizes.struct_fields.push((self.name(&item.ident), fields.named.len()));
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tree::tree_of;

    #[test]
    fn each_size_is_measured_with_the_name_of_its_item() {
        let text = "struct Pool { a: u8, b: u8 }\nstruct Pair(u8, u8);\n\
            impl Pool {\n    /// Doc.\n    fn take(&self) {\n        self.a\n    }\n}\n\
            trait Lower {\n    fn read(&self);\n    fn write(&self) {}\n    const A: u8;\n}\n\
            mod tests { fn f() {\n} }\n";
        let sizes = measure(&tree_of(&[("crates/a/src/lib.rs", text)]));
        let named = |name: &str, size| (format!("crates/a/src/lib.rs{name}"), size);
        assert_eq!(sizes.file_lines, [named("", 15)]);
        assert_eq!(sizes.struct_fields, [named(" Pool", 2)]);
        assert_eq!(sizes.trait_methods, [named(" Lower", 2)]);
        let functions = [named(" Pool::take", 3), named(" Lower::write", 1), named(" tests::f", 2)];
        assert_eq!(sizes.function_lines, functions);
    }
}
