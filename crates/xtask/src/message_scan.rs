//! Finds the messages of the program in its source: failures of commands and events of the log, each with its remedy.
//!
//! A failure is made by `Failure::new(message)` or `Failure::settings(message)`, usually followed by
//! `.remedy(remedy)`; an event by `error!` or `warn!`, with a field `remedy`, or with a field `failure`, which prints the
//! remedy of that failure. Texts are followed through local variables, closures, functions and constants of the same
//! file, through functions and constants of other files whose names end in `_remedy`, and through the branches of `if`
//! and `match`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use anyhow::Result;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Expr, ExprMethodCall, Lit, Pat, Stmt};

/// Stands for each value in the text of a message.
pub const VALUE: &str = "…";

/// The longest chain of variables and functions that is followed from a message to its text. The source has no longer
/// chain.
const DEPTH: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageKind {
    /// An error with which a command or the program ends.
    Failure,
    /// An event of the log with level error.
    Error,
    /// An event of the log with level warn.
    Warning,
}

/// The messages of a source file: kind and text, with the possible remedies. A set is empty if the source names none.
pub type Messages = BTreeMap<(MessageKind, String), BTreeSet<String>>;

/// The remedy of an event with a field `failure`.
pub const IN_FAILURE: &str = "do what the event says after `remedy:`";

/// For each function and constant whose name ends in `_remedy`, the texts that it contains.
pub type SharedRemedies = BTreeMap<String, Vec<String>>;

/// Returns the messages in a source file.
pub fn scan(source: &str, shared: &SharedRemedies) -> Result<Messages> {
    let file = syn::parse_file(source)?;
    let mut names = Names::default();
    names.visit_file(&file);
    let mut scan = Scan { names: &names, shared, messages: Messages::new() };
    scan.visit_file(&file);
    Ok(scan.messages)
}

/// Returns the functions and constants of a source file whose names end in `_remedy`, with their texts.
pub fn shared_remedies(source: &str) -> Result<SharedRemedies> {
    let file = syn::parse_file(source)?;
    let mut names = Names::default();
    names.visit_file(&file);
    let none = SharedRemedies::new();
    let scan = Scan { names: &names, shared: &none, messages: Messages::new() };
    let named = file.items.iter().filter_map(|item| match item {
        syn::Item::Const(constant) => Some(constant.ident.to_string()),
        syn::Item::Fn(function) => Some(function.sig.ident.to_string()),
        _ => None,
    });
    let remedies = named.filter(|name| name.to_lowercase().ends_with("_remedy"));
    Ok(remedies
        .map(|name| {
            let values = scan.values_of(&name).iter();
            let texts = values.flat_map(|value| scan.texts(value, DEPTH)).collect();
            (name, texts)
        })
        .collect())
}

/// What the names of a file stand for: variables, constants, and results of closures and functions.
#[derive(Default)]
struct Names<'a> {
    values: HashMap<String, Vec<&'a Expr>>,
}

impl<'a> Names<'a> {
    fn add(&mut self, name: String, value: &'a Expr) {
        self.values.entry(name).or_default().push(value);
    }

    fn add_function(&mut self, name: String, block: &'a syn::Block) {
        if let Some(Stmt::Expr(value, None)) = block.stmts.last() {
            self.add(name, value);
        }
    }
}

impl<'a> Visit<'a> for Names<'a> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !crate::check::tree::is_test_only(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        if let (Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            self.add(name.ident.to_string(), &init.expr);
        }
        visit::visit_local(self, local);
    }

    fn visit_item_const(&mut self, item: &'a syn::ItemConst) {
        self.add(item.ident.to_string(), &item.expr);
        visit::visit_item_const(self, item);
    }

    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.add_function(item.sig.ident.to_string(), &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.add_function(item.sig.ident.to_string(), &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}

struct Scan<'n, 'a> {
    names: &'n Names<'a>,
    shared: &'n SharedRemedies,
    messages: Messages,
}

impl<'a> Visit<'a> for Scan<'_, 'a> {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        if !crate::check::tree::is_test_only(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        if call.method == "remedy"
            && let [remedy] = Vec::from_iter(&call.args)[..]
        {
            let remedies = self.texts(remedy, DEPTH);
            for made in self.made_failures(&call.receiver, DEPTH) {
                self.add_failures(made, &remedies);
            }
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let Some(message) = message_of(call) {
            self.add_failures(message, &[]);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string());
        let kind = match name.as_deref() {
            Some("error") => MessageKind::Error,
            Some("warn") => MessageKind::Warning,
            _ => return,
        };
        let arguments = arguments(call.tokens.clone());
        let remedies = arguments.iter().find_map(|argument| field(argument, "remedy"));
        let mut remedies = remedies.map_or(vec![], |remedy| self.texts(&remedy, DEPTH));
        if arguments.iter().any(|argument| field(argument, "failure").is_some()) {
            remedies.push(IN_FAILURE.to_owned());
        }
        let message = arguments.iter().rev().find_map(|argument| {
            let text: syn::LitStr = syn::parse2(argument.clone()).ok()?;
            Some(text.value())
        });
        if let Some(message) = message {
            self.messages.entry((kind, with_values(&message))).or_default().extend(remedies);
        }
    }
}

impl<'a> Scan<'_, 'a> {
    /// Adds each text that the message of a failure can be. A message that is only the text of another error, such as
    /// an I/O error, has no text in the source and is left out.
    fn add_failures(&mut self, message: &Expr, remedies: &[String]) {
        for text in self.texts(message, DEPTH) {
            if text.chars().any(char::is_alphabetic) {
                let known = self.messages.entry((MessageKind::Failure, text)).or_default();
                known.extend(remedies.iter().cloned());
            }
        }
    }

    /// Returns the messages of all failures to which an expression can evaluate.
    fn made_failures(&self, value: &'a Expr, depth: usize) -> Vec<&'a Expr> {
        let Some(depth) = depth.checked_sub(1) else { return vec![] };
        match value {
            Expr::Call(call) => match message_of(call) {
                Some(message) => vec![message],
                None => self.named(&call.func, |value| self.made_failures(value, depth)),
            },
            Expr::MethodCall(call) => self.made_failures(&call.receiver, depth),
            Expr::Path(_) => self.named(value, |value| self.made_failures(value, depth)),
            other => branches(other)
                .into_iter()
                .flat_map(|value| self.made_failures(value, depth))
                .collect(),
        }
    }

    /// Returns all texts to which an expression can evaluate, with [`VALUE`] for each value in
    /// them.
    fn texts(&self, value: &Expr, depth: usize) -> Vec<String> {
        let Some(depth) = depth.checked_sub(1) else { return vec![] };
        match value {
            Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => vec![text.value()],
                _ => vec![],
            },
            Expr::Macro(call) if call.mac.path.is_ident("format") => {
                let first = arguments(call.mac.tokens.clone()).into_iter().next();
                let text = first.and_then(|first| syn::parse2::<syn::LitStr>(first).ok());
                let constant = |name: &str| self.constant(name, depth);
                text.map(|text| filled(&text.value(), constant)).into_iter().collect()
            }
            Expr::MethodCall(call) => {
                let named = self.values_of(&call.method.to_string());
                let texts: Vec<String> =
                    named.iter().flat_map(|value| self.texts(value, depth)).collect();
                if texts.is_empty() { self.texts(&call.receiver, depth) } else { texts }
            }
            Expr::Call(call) => {
                let mut texts = self.named(&call.func, |value| self.texts(value, depth));
                if texts.is_empty() {
                    texts = self.shared_texts(&call.func);
                }
                if texts.is_empty() && call.args.len() == 1 {
                    return self.texts(&call.args[0], depth);
                }
                texts
            }
            Expr::Path(_) => {
                let texts = self.named(value, |value| self.texts(value, depth));
                if texts.is_empty() { self.shared_texts(value) } else { texts }
            }
            other => {
                branches(other).into_iter().flat_map(|value| self.texts(value, depth)).collect()
            }
        }
    }

    /// Applies `read` to each value that the name can have in the file.
    fn named<T>(&self, name: &Expr, read: impl Fn(&'a Expr) -> Vec<T>) -> Vec<T> {
        let Expr::Path(path) = name else { return vec![] };
        let Some(last) = path.path.segments.last() else { return vec![] };
        self.values_of(&last.ident.to_string()).iter().flat_map(|value| read(value)).collect()
    }

    /// Returns the texts of a function or constant that another file defines.
    fn shared_texts(&self, name: &Expr) -> Vec<String> {
        let Expr::Path(path) = name else { return vec![] };
        let last = path.path.segments.last().map(|last| last.ident.to_string());
        last.and_then(|last| self.shared.get(&last)).cloned().unwrap_or_default()
    }

    fn constant(&self, name: &str, depth: usize) -> Option<String> {
        let is_constant = name.bytes().all(|c| c.is_ascii_uppercase() || c == b'_');
        let values = self.values_of(name).iter().filter(|_| is_constant);
        let mut texts: Vec<String> = values.flat_map(|value| self.texts(value, depth)).collect();
        if texts.is_empty() {
            texts = self.shared.get(name).cloned().unwrap_or_default();
        }
        texts.pop().filter(|_| texts.is_empty())
    }

    fn values_of(&self, name: &str) -> &[&'a Expr] {
        self.names.values.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Returns the message of `Failure::new(message)` and `Failure::settings(message)`.
fn message_of(call: &syn::ExprCall) -> Option<&Expr> {
    let Expr::Path(path) = &*call.func else { return None };
    let names: Vec<String> =
        path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    let is_failure = matches!(
        &names.iter().map(String::as_str).collect::<Vec<_>>()[..],
        [.., "Failure", "new" | "settings"]
    );
    call.args.first().filter(|_| is_failure && call.args.len() == 1)
}

/// Returns the expressions that can be the value of a compound expression.
fn branches(value: &Expr) -> Vec<&Expr> {
    match value {
        Expr::Reference(inner) => vec![&*inner.expr],
        Expr::Paren(inner) => vec![&*inner.expr],
        Expr::Group(inner) => vec![&*inner.expr],
        Expr::Closure(closure) => vec![&*closure.body],
        Expr::Block(block) => of_block(&block.block),
        Expr::If(choice) => {
            let mut values = of_block(&choice.then_branch);
            values.extend(choice.else_branch.iter().map(|(_, value)| &**value));
            values
        }
        Expr::Match(choice) => choice.arms.iter().map(|arm| &*arm.body).collect(),
        _ => vec![],
    }
}

fn of_block(block: &syn::Block) -> Vec<&Expr> {
    match block.stmts.last() {
        Some(Stmt::Expr(value, None)) => vec![value],
        _ => vec![],
    }
}

/// Splits the tokens of a macro's arguments at the commas.
fn arguments(tokens: TokenStream) -> Vec<TokenStream> {
    let mut arguments = vec![vec![]];
    for token in tokens {
        match &token {
            TokenTree::Punct(mark) if mark.as_char() == ',' => arguments.push(vec![]),
            _ => arguments.last_mut().expect("it begins with one").push(token),
        }
    }
    arguments.into_iter().map(TokenStream::from_iter).collect()
}

/// Returns the value of a field of an event: `name`, `name = value` or `%name`.
fn field(argument: &TokenStream, name: &str) -> Option<Expr> {
    let mut tokens = argument.clone().into_iter().peekable();
    tokens
        .next_if(|token| matches!(token, TokenTree::Punct(mark) if "%?".contains(mark.as_char())));
    let first = tokens.next().filter(|token| token.to_string() == name)?;
    match tokens.next() {
        None => syn::parse2(first.into()).ok(),
        Some(TokenTree::Punct(mark)) if mark.as_char() == '=' => {
            tokens.next_if(
                |token| matches!(token, TokenTree::Punct(mark) if "%?".contains(mark.as_char())),
            );
            syn::parse2(tokens.collect()).ok()
        }
        Some(_) => None,
    }
}

/// Replaces each placeholder of a format string by [`VALUE`].
fn with_values(format: &str) -> String {
    filled(format, |_| None)
}

/// Replaces each placeholder of a format string by the text of the constant that it names, or else by [`VALUE`].
fn filled(format: &str, constant: impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        text.push_str(&rest[..at]);
        let (found, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(found) {
            text.push_str(found);
            rest = after;
        } else {
            let (name, after) = after.split_once('}').unwrap_or((after, ""));
            text.push_str(constant(name).as_deref().unwrap_or(VALUE));
            rest = after;
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the messages of a function body, each as its text and its remedies joined by " | ".
    fn check(body: &str, expected: &[(&str, &str)]) {
        let source = format!("const HELP: &str = \"help\";\nfn f() {{ {body} }}\n");
        let shared = [("io_remedy".to_owned(), vec!["make room".to_owned()])].into();
        let found = scan(&source, &shared).unwrap();
        let found: Vec<(String, String)> = found
            .into_iter()
            .map(|((_, text), remedies)| (text, Vec::from_iter(remedies).join(" | ")))
            .collect();
        let expected: Vec<(String, String)> =
            expected.iter().map(|(text, remedy)| (text.to_string(), remedy.to_string())).collect();
        assert_eq!(found, expected, "{body}");
    }

    #[test]
    fn a_failure_comes_with_its_remedy() {
        check("Failure::new(\"a\").remedy(\"b\")", &[("a", "b")]);
        check(
            "Failure::settings(format!(\"no {x} in {}\", y)).remedy(HELP)",
            &[("no … in …", "help")],
        );
        check("Failure::new(\"a\")", &[("a", "")]);
        check("Failure::new(error)", &[]);
    }

    #[test]
    fn texts_are_followed_through_variables_closures_and_branches() {
        check(
            "let text = if x { \"a\" } else { \"b\" }; let failure = Failure::new(text); failure.remedy(HELP)",
            &[("a", "help"), ("b", "help")],
        );
        check(
            "let cannot = |e| Failure::new(format!(\"cannot {e}\")).remedy(match e { 1 => \"c\", _ => \"d\" });",
            &[("cannot …", "c | d")],
        );
    }

    #[test]
    fn the_remedy_of_a_failure_that_a_closure_returns_is_found() {
        check(
            "let cannot = |e| Failure::new(format!(\"cannot {e}\")); cannot(1).remedy(\"c\");",
            &[("cannot …", "c")],
        );
    }

    #[test]
    fn events_come_with_the_field_remedy() {
        check("tracing::error!(%path, remedy = HELP, \"lost\");", &[("lost", "help")]);
        check("let remedy = \"r\"; warn!(remedy, \"late: {} s\", 3);", &[("late: … s", "r")]);
        check("info!(\"started\");", &[]);
    }

    #[test]
    fn a_constant_within_a_remedy_is_written_out() {
        check("Failure::new(\"a\").remedy(format!(\"{HELP} {x}\"))", &[("a", "help …")]);
    }

    #[test]
    fn an_event_that_prints_a_failure_has_the_remedy_of_that_failure() {
        check("warn!(%failure, \"not saved\");", &[("not saved", IN_FAILURE)]);
    }

    #[test]
    fn a_remedy_is_followed_into_a_function_of_another_file() {
        check("Failure::new(\"a\").remedy(stack::io_remedy(&error, path))", &[("a", "make room")]);
        check("warn!(remedy = io_remedy, \"b\");", &[("b", "make room")]);
        let source = "pub fn io_remedy(a: u8) -> String { match a { 0 => \"b\".into(), _ => \"c\".into() } }";
        assert_eq!(shared_remedies(source).unwrap()["io_remedy"], ["b", "c"]);
    }

    #[test]
    fn tests_are_no_part_of_the_program() {
        let found = scan(
            "#[cfg(test)] mod tests { fn f() { Failure::new(\"a\"); } }",
            &SharedRemedies::new(),
        )
        .unwrap();
        assert!(found.is_empty());
    }
}
