//! Finds files that need each other through the methods of one type.
//!
//! A call such as `self.flush()` needs no import, so two files can call each other's methods although the order of the
//! modules permits only one direction. For each type of a crate this check draws an arrow from a file to another one if
//! a method of the type in the first file calls a method of the same type in the second. A free function that takes the
//! type counts as its method. A circle is a set of files in which each can reach each other one along the arrows.
//!
//! The receiver of a call is found without the compiler, by [`FunctionScope`]: from declared types of parameters and
//! fields, and from the return types of functions of the same crate. Where that fails, a method name that only one type
//! of the crate has is taken as a method of this type.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprCall, ExprClosure, ExprForLoop, ExprLet, ExprMatch, ExprMethodCall};
use syn::{ExprPath, FnArg, ImplItem, Item, ItemImpl, Local, Macro, Signature, Token, Type};

use crate::check::receivers::{CrateTypeIndex, FunctionScope, path_names, peel};
use crate::check::tree::{SourceFile, SourceTree, is_test_only};

/// A set of files that need each other: through calls of methods of one type, each file reaches every other one.
#[derive(Debug, Eq, PartialEq)]
pub struct Circle {
    /// The crate and the type whose methods form the circle, such as `crates/cache Shared`.
    pub name: String,
    pub files: Vec<String>,
    /// The calls between files of the circle, as `file: caller -> file: method`.
    pub calls: Vec<String>,
}

/// Returns the circles of files in all crates.
pub fn find(tree: &SourceTree) -> Vec<Circle> {
    let mut crates: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in tree.program() {
        crates.entry(&file.krate).or_default().push(file);
    }
    crates.into_iter().flat_map(|(krate, files)| circles_of_crate(krate, &files)).collect()
}

fn circles_of_crate(krate: &str, files: &[&SourceFile]) -> Vec<Circle> {
    let mut known = CrateTypeIndex::read(files);
    let bodies: Vec<Body> = files.iter().flat_map(|file| bodies(file, &known)).collect();
    for body in &bodies {
        let (signature, file) = (body.signature, &body.file.path);
        match &body.own_type {
            Some(owner) => known.add_method(owner, signature, file),
            None => known.add_function(&body.owners, signature, file),
        }
    }
    let mut arrows: BTreeMap<String, BTreeMap<(String, String), BTreeSet<String>>> =
        BTreeMap::new();
    for body in &bodies {
        for MethodCall { owner, name, file } in body.calls(&known) {
            if body.owners.contains(&owner) && file != body.file.path {
                let call =
                    format!("{}: {} -> {file}: {name}", body.file.path, body.signature.ident);
                let arrow = (body.file.path.clone(), file);
                arrows.entry(owner).or_default().entry(arrow).or_default().insert(call);
            }
        }
    }
    let circles = arrows.iter().flat_map(|(owner, arrows)| {
        strongly_connected(arrows.keys().map(|(from, to)| (from.as_str(), to.as_str())))
            .into_iter()
            .map(move |files| Circle {
                name: format!("{krate} {owner}"),
                calls: calls_inside(arrows, &files),
                files: files.into_iter().map(str::to_owned).collect(),
            })
    });
    circles.collect()
}

fn calls_inside(
    arrows: &BTreeMap<(String, String), BTreeSet<String>>,
    files: &BTreeSet<&str>,
) -> Vec<String> {
    let inside = |(from, to): &(String, String)| {
        files.contains(from.as_str()) && files.contains(to.as_str())
    };
    arrows.iter().filter(|(arrow, _)| inside(arrow)).flat_map(|(_, calls)| calls.clone()).collect()
}

/// Returns the sets of two or more nodes that reach each other along the arrows.
fn strongly_connected<'a>(
    arrows: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<BTreeSet<&'a str>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows {
        next.entry(from).or_default().insert(to);
    }
    let reached = |start: &'a str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(node) = open.pop() {
            let more = next.get(node).into_iter().flatten().copied();
            open.extend(more.filter(|node| seen.insert(*node)));
        }
        seen
    };
    let all: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|node| (*node, reached(node))).collect();
    let reaches = |from: &str, to: &str| all.get(from).is_some_and(|seen| seen.contains(to));
    let mut sets: Vec<BTreeSet<&str>> = vec![];
    for node in next.keys().copied().filter(|node| reaches(node, node)) {
        if !sets.iter().any(|set| set.contains(node)) {
            sets.push(
                next.keys().copied().filter(|to| reaches(node, to) && reaches(to, node)).collect(),
            );
        }
    }
    sets
}

/// A function with its body, and the types to which it belongs as a method.
struct Body<'a> {
    file: &'a SourceFile,
    /// The types whose method this is: the type of the `impl` block; for a free function, the types of its parameters.
    owners: Vec<String>,
    /// The type that `Self` means in the body.
    own_type: Option<String>,
    signature: &'a Signature,
    block: &'a Block,
}

/// Returns all functions of a file, except those of its tests.
fn bodies<'a>(file: &'a SourceFile, known: &CrateTypeIndex) -> Vec<Body<'a>> {
    let mut found = vec![];
    add_bodies(file, known, &file.syntax.items, &mut found);
    found
}

fn add_bodies<'a>(
    file: &'a SourceFile,
    known: &CrateTypeIndex,
    items: &'a [Item],
    found: &mut Vec<Body<'a>>,
) {
    let identify = |of: &Type| known.identify(&peel(of)?, &file.path);
    for item in items {
        match item {
            Item::Mod(module) if !is_test_only(&module.attrs) => {
                let items = module.content.as_ref().map_or(&[][..], |(_, items)| items);
                add_bodies(file, known, items, found);
            }
            Item::Fn(function) if !is_test_only(&function.attrs) => {
                let takes = |input: &FnArg| match input {
                    FnArg::Typed(input) => identify(&input.ty),
                    FnArg::Receiver(_) => None,
                };
                found.push(Body {
                    file,
                    owners: function.sig.inputs.iter().filter_map(takes).collect(),
                    own_type: None,
                    signature: &function.sig,
                    block: &function.block,
                });
            }
            Item::Impl(block) if !is_test_only(&block.attrs) => {
                if let Some(owner) = identify(&block.self_ty) {
                    found.extend(methods(file, &owner, block));
                }
            }
            _ => {}
        }
    }
}

fn methods<'a>(file: &'a SourceFile, owner: &str, block: &'a ItemImpl) -> Vec<Body<'a>> {
    let body = |item: &'a ImplItem| match item {
        ImplItem::Fn(method) if !is_test_only(&method.attrs) => Some(Body {
            file,
            owners: vec![owner.to_owned()],
            own_type: Some(owner.to_owned()),
            signature: &method.sig,
            block: &method.block,
        }),
        _ => None,
    };
    block.items.iter().filter_map(body).collect()
}

/// A call of a method, or of a free function that takes the type as an argument.
#[derive(Eq, Ord, PartialEq, PartialOrd)]
struct MethodCall {
    owner: String,
    name: String,
    /// The path of the file that defines the method.
    file: String,
}

impl Body<'_> {
    /// Returns the calls of methods of the crate's types in the body.
    fn calls(&self, known: &CrateTypeIndex) -> BTreeSet<MethodCall> {
        let mut scope = FunctionScope::new(known, &self.file.path, self.own_type.clone());
        for input in &self.signature.inputs {
            if let FnArg::Typed(input) = input {
                let of = scope.declared(&input.ty);
                scope.bind(&input.pat, of);
            }
        }
        let mut calls = MethodCallVisitor { scope, found: BTreeSet::new() };
        calls.visit_block(self.block);
        calls.found
    }
}

/// Visits the statements of a function in order, records the types of variables, and collects method calls.
struct MethodCallVisitor<'a> {
    scope: FunctionScope<'a>,
    found: BTreeSet<MethodCall>,
}

impl<'ast> Visit<'ast> for MethodCallVisitor<'_> {
    fn visit_local(&mut self, local: &'ast Local) {
        let value = local.init.as_ref().and_then(|init| self.scope.type_of(&init.expr));
        self.scope.bind(&local.pat, value);
        visit::visit_local(self, local);
    }

    fn visit_expr_let(&mut self, condition: &'ast ExprLet) {
        let value = self.scope.type_of(&condition.expr);
        self.scope.bind(&condition.pat, value);
        visit::visit_expr_let(self, condition);
    }

    fn visit_expr_match(&mut self, expression: &'ast ExprMatch) {
        let value = self.scope.type_of(&expression.expr);
        for arm in &expression.arms {
            self.scope.bind(&arm.pat, value.clone());
        }
        visit::visit_expr_match(self, expression);
    }

    fn visit_expr_for_loop(&mut self, expression: &'ast ExprForLoop) {
        let value = self.scope.type_of(&expression.expr);
        self.scope.bind(&expression.pat, value);
        visit::visit_expr_for_loop(self, expression);
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        for input in &closure.inputs {
            self.scope.bind(input, None);
        }
        visit::visit_expr_closure(self, closure);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let method = call.method.to_string();
        self.add(self.scope.owner_of(&call.receiver, &method), method);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func {
            let (owner, name) = path_names(&path.path);
            let is_module = |name: &str| name.starts_with(|c: char| c.is_lowercase() || c == '_');
            match owner {
                Some(owner) if !is_module(&owner) => self.add(self.scope.resolve(&owner), name),
                module => {
                    let scope = &self.scope;
                    if let Some(function) =
                        scope.known.function(module.as_deref(), &name, scope.file)
                    {
                        let file = &function.file;
                        self.found.extend(function.takes.iter().map(|owner| MethodCall {
                            owner: owner.clone(),
                            name: name.clone(),
                            file: file.clone(),
                        }));
                    }
                }
            }
        }
        visit::visit_expr_call(self, call);
    }

    /// Visits the arguments of a macro if they are expressions. In other macros, such as `select!`, only calls of the
    /// form
    /// `variable.method(…)` are found.
    fn visit_macro(&mut self, call: &'ast Macro) {
        match Punctuated::<Expr, Token![,]>::parse_terminated.parse2(call.tokens.clone()) {
            Ok(arguments) => {
                // `visit_expr` needs expressions that live as long as the file, and `arguments` is local. A second
                // visitor with a shorter lifetime therefore visits the arguments.
                let mut inner = MethodCallVisitor {
                    scope: self.scope.clone(),
                    found: std::mem::take(&mut self.found),
                };
                arguments.iter().for_each(|argument| inner.visit_expr(argument));
                self.found = inner.found;
            }
            Err(_) => self.scan(call.tokens.clone()),
        }
    }
}

impl MethodCallVisitor<'_> {
    /// Adds a call of a method if the crate defines the receiver's type.
    fn add(&mut self, owner: Option<String>, name: String) {
        let Some(owner) = owner else { return };
        if let Some(file) = self.scope.known.file_of(&owner, &name) {
            let file = file.to_owned();
            self.found.insert(MethodCall { owner, name, file });
        }
    }

    /// Finds calls of the form `variable.method(…)` in tokens.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for window in tokens.windows(4) {
            let [
                TokenTree::Ident(variable),
                TokenTree::Punct(dot),
                TokenTree::Ident(method),
                TokenTree::Group(arguments),
            ] = window
            else {
                continue;
            };
            if dot.as_char() == '.' && arguments.delimiter() == Delimiter::Parenthesis {
                let receiver = Expr::Path(ExprPath {
                    attrs: vec![],
                    qself: None,
                    path: variable.clone().into(),
                });
                let method = method.to_string();
                self.add(self.scope.owner_of(&receiver, &method), method);
            }
        }
        for token in tokens {
            if let TokenTree::Group(group) = token {
                self.scan(group.stream());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::tree::tree_of;

    const ROOT: &str =
        "struct Pool { state: Mutex<State>, next: u8 }\nstruct State;\nmod a; mod b;";

    fn check(a: &str, b: &str, expected: &[&str]) {
        let sources =
            [("crates/x/src/lib.rs", ROOT), ("crates/x/src/a.rs", a), ("crates/x/src/b.rs", b)];
        let found: Vec<String> = find(&tree_of(&sources)).into_iter().map(|c| c.name).collect();
        assert_eq!(found, expected, "{a} {b}");
    }

    #[test]
    fn two_files_that_call_each_other_through_self_are_a_circle() {
        let b = "impl Pool { fn two(&self) { self.one() } fn three(&self) {} }";
        check("impl Pool { fn one(&self) { self.two() } }", b, &["crates/x Pool"]);
        check("impl Pool { fn one(&self) { Self::two(self) } }", b, &["crates/x Pool"]);
        check("impl Pool { fn one(&self) { let p = &*self; p.two() } }", b, &["crates/x Pool"]);
        check("impl Pool { fn one(&self) { if a { f(|| self.two()) } } }", b, &["crates/x Pool"]);
        check("impl Pool { fn one(&self) { info!(self.two(), 1) } }", b, &["crates/x Pool"]);
        check(
            "impl Pool { fn one(&self) { select! { _ = self.two() => {} } } }",
            b,
            &["crates/x Pool"],
        );
        check("impl Pool { fn one(&self) {} }", b, &[]);
    }

    #[test]
    fn a_free_function_that_takes_the_type_counts_as_its_method() {
        let b = "use crate::a::one; impl Pool { fn two(&self) { one(self) } }";
        check("fn one(pool: &Pool) { pool.two() }", b, &["crates/x Pool"]);
        check("fn one(pool: &Arc<Pool>) { pool.two() }", b, &["crates/x Pool"]);
        check("fn one(pool: u8) { pool.len() }", b, &[]);
    }

    #[test]
    fn fields_locks_and_results_lead_to_the_type() {
        let b = "impl State { fn two(&mut self) { self.one() } }\nfn of(p: &Pool) -> Arc<State> {}";
        for a in [
            "impl State { fn one(&self, pool: &Pool) { pool.state.lock().two() } }",
            "impl State { fn one(&self, pool: &Pool) { let mut s = pool.state.lock(); s.two() } }",
            "impl State { fn one(&self, pool: &Pool) { of(pool).two() } }",
            "impl State { fn one(&self, p: Option<&Self>) { if let Some(s) = p { s.two() } } }",
        ] {
            check(a, b, &["crates/x State"]);
        }
        let a = "impl State { fn one(&self, other: Unrelated) { other.two() } }";
        check(a, b, &[]);
    }

    #[test]
    fn a_name_that_only_one_type_has_is_enough() {
        let b = "impl Pool { fn two(&self) { self.one() } }";
        check("impl Pool { fn one(&self) { unknown().two() } }", b, &["crates/x Pool"]);
        let twice = "impl Pool { fn two(&self) { self.one() } }\nimpl State { fn two(&self) {} }";
        check("impl Pool { fn one(&self) { unknown().two() } }", twice, &[]);
    }

    #[test]
    fn types_of_one_name_are_distinguished_by_the_file_that_defines_or_imports_them() {
        let root = "mod a; mod b; mod c; struct Pool { queue: crate::a::Queue }";
        let a = "pub struct Queue; impl Queue { fn one(&self) { self.two() } }";
        let b = "use crate::a::Queue; impl Queue { fn two(&self) { self.one() } }";
        let check = |c: &str, expected: usize| {
            let sources = [
                ("crates/x/src/lib.rs", root),
                ("crates/x/src/a.rs", a),
                ("crates/x/src/b.rs", b),
                ("crates/x/src/c.rs", c),
            ];
            let names: Vec<String> = find(&tree_of(&sources)).into_iter().map(|c| c.name).collect();
            assert_eq!(names.len(), expected, "{names:?}");
        };
        check("", 1);
        check("pub struct Queue; impl Queue { fn one(&self) {} fn two(&self) {} }", 1);
        let sources = [
            ("crates/x/src/lib.rs", root),
            ("crates/x/src/a.rs", "pub struct Queue; impl Queue { fn one(&self) { self.two() } }"),
            ("crates/x/src/b.rs", "pub struct Queue; impl Queue { fn two(&self) { self.one() } }"),
        ];
        assert_eq!(find(&tree_of(&sources)), []);
    }

    #[test]
    fn a_circle_lists_its_files_and_the_calls_between_them() {
        let sources = [
            ("crates/x/src/lib.rs", "struct Pool;"),
            ("crates/x/src/a.rs", "impl Pool { fn one(&self) { self.two() } }"),
            ("crates/x/src/b.rs", "impl Pool { fn two(&self) { self.three() } }"),
            ("crates/x/src/c.rs", "impl Pool { fn three(&self) { self.one(); self.four() } }"),
            ("crates/x/src/d.rs", "impl Pool { fn four(&self) {} }"),
        ];
        let circles = find(&tree_of(&sources));
        assert_eq!(circles[0].files, ["a", "b", "c"].map(|name| format!("crates/x/src/{name}.rs")));
        assert_eq!(circles[0].calls[0], "crates/x/src/a.rs: one -> crates/x/src/b.rs: two");
        assert_eq!((circles.len(), circles[0].calls.len()), (1, 3));
    }
}
