//! Makes the tables of `docs/protocols.md` that list what the code has.
//!
//! - text keys: the table of crate `iscsi`, with the doc comment of each key;
//! - commands: the doc comments of the enums of commands in crate `scsi`;
//! - sense data: the constants of `Sense` in crate `scsi`, with their doc comments;
//! - service actions of objects: the rows of the macro `service_actions` in crate `osd`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Ident, Item, LitInt, LitStr, Token};

use crate::doc_comment::{first_paragraph, items_in, with_part};

pub const PAGE: &str = "docs/protocols.md";
/// The enums of commands in crate `scsi`.
const FAMILIES: [&str; 3] = ["BlockCommand", "PrimaryCommand", "VendorCommand"];

/// Returns the text `page` with its tables made again from the source.
pub fn page(root: &Path, page: &str) -> Result<String> {
    let iscsi = items_in(&root.join("crates/iscsi/src"))?;
    let scsi = items_in(&root.join("crates/scsi/src"))?;
    let page = with_part(page, "Table of text keys", &text_keys(&iscsi).context("text keys")?)?;
    let page = with_part(&page, "Table of commands", &commands(&scsi).context("commands")?)?;
    let page = with_part(&page, "Table of sense data", &sense_data(&scsi).context("sense data")?)?;
    let osd = items_in(&root.join("crates/osd/src"))?;
    let actions = service_actions(&osd).context("service actions")?;
    with_part(&page, "Table of service actions", &actions)
}

/// Returns the table of commands. The doc comment of a command is `codes: name. notes`.
fn commands(items: &[Item]) -> Result<String> {
    let mut rows = BTreeMap::new();
    for family in FAMILIES {
        for (command, about) in variants(items, family)? {
            let (codes, text) = about
                .split_once(": ")
                .with_context(|| format!("{family}::{command} has no operation codes"))?;
            let (name, notes) = text.trim_end_matches('.').split_once(". ").unwrap_or((text, ""));
            let name = name.trim_end_matches('.');
            let notes = if notes.is_empty() { String::new() } else { format!("{notes} ") };
            let row = format!("| {codes} | {name} | {notes}|\n");
            let before = rows.insert(codes.to_owned(), row);
            ensure!(before.is_none(), "two commands have the codes {codes}");
        }
    }
    let rows: Vec<String> = rows.into_values().collect();
    Ok(format!("\n| code | command | notes |\n|---|---|---|\n{}\n", rows.concat()))
}

/// Returns the table of text keys: `TABLE` of the items has a row `row(TextKey::..., "name", stages, kind)` or
/// `normal(TextKey::..., "name", kind)` for each key.
fn text_keys(items: &[Item]) -> Result<String> {
    let keys = variants(items, "TextKey")?;
    let constants = constants(items);
    let Some(Expr::Array(rows)) = constants.get("TABLE") else { bail!("TABLE is no array") };
    let mut table = "\n| key | result | our ends |\n|---|---|---|\n".to_owned();
    for row in &rows.elems {
        let Expr::Call(row) = row else { bail!("a row of TABLE is no call") };
        let (key, kind) = row.args.first().zip(row.args.last()).context("an empty row")?;
        let name = row.args.iter().find_map(text).context("a row without a name")?;
        let key = last_name(key).context("a row without a key")?;
        let about = keys.get(&key).with_context(|| format!("there is no key {key}"))?;
        ensure!(!about.is_empty(), "the key {name} has no doc comment");
        let mut result = negotiated(kind, &constants).with_context(|| name.clone())?;
        if last_name(&row.func).is_some_and(|function| function == "normal") {
            result += "; not for discovery";
        }
        table += &format!("| {name} | {result} | {about} |\n");
    }
    Ok(table + "\n")
}

/// Returns the table of sense data: of each constant `Self::new(SenseKey::..., asc, ascq)` of `Sense`, in the order of
/// the codes.
fn sense_data(items: &[Item]) -> Result<String> {
    let keys = sense_keys(items)?;
    let implementations = items.iter().filter_map(|item| match item {
        Item::Impl(item) if item.trait_.is_none() => Some(item),
        _ => None,
    });
    let mut rows = BTreeMap::new();
    for constant in
        implementations.filter(|item| is_named(&item.self_ty, "Sense")).flat_map(|i| &i.items)
    {
        let syn::ImplItem::Const(constant) = constant else { continue };
        if !is_named(&constant.ty, "Self") {
            continue;
        }
        let name = constant.ident.to_string().replace('_', " ");
        let (key, codes) = match &constant.expr {
            Expr::Call(call) => (call.args.first(), call.args.iter().skip(1).filter_map(number)),
            _ => bail!("{name} is no call of Self::new"),
        };
        let key = key.and_then(last_name).and_then(|key| keys.get(&key));
        let (key, codes) = (key.with_context(|| format!("the key of {name}"))?, codes.collect());
        let codes: Vec<u8> = codes;
        ensure!(codes.len() == 2, "{name} has no ASC and ASCQ");
        let code = format!("{key:X}/{:02X}/{:02X}", codes[0], codes[1]);
        let about = first_paragraph(&constant.attrs);
        ensure!(!about.is_empty(), "{name} has no doc comment");
        let row = format!("| {code} | {name} | {about} |\n");
        ensure!(rows.insert(code, row).is_none(), "two constants have the codes of {name}");
    }
    let rows: Vec<String> = rows.into_values().collect();
    Ok(format!("\n| sense | name | when |\n|---|---|---|\n{}\n", rows.concat()))
}

/// A row of the macro `service_actions`: `Name = code, "NAME";` with a doc comment.
struct ServiceActionRow {
    about: String,
    code: u16,
    name: String,
}

impl Parse for ServiceActionRow {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let about = first_paragraph(&input.call(Attribute::parse_outer)?);
        input.parse::<Ident>()?;
        input.parse::<Token![=]>()?;
        let code = input.parse::<LitInt>()?.base10_parse()?;
        input.parse::<Token![,]>()?;
        Ok(Self { about, code, name: input.parse::<LitStr>()?.value() })
    }
}

/// Returns the table of service actions. The doc comment of each has the sentences `Sends ...` and
/// `Returns ...`, which may be missing, and `Needs the permission ...`.
fn service_actions(items: &[Item]) -> Result<String> {
    let found = items.iter().find_map(|item| match item {
        Item::Macro(item) if item.mac.path.is_ident("service_actions") => Some(&item.mac),
        _ => None,
    });
    let rows = found
        .context("there is no macro service_actions")?
        .parse_body_with(Punctuated::<ServiceActionRow, Token![;]>::parse_terminated)?;
    let mut table = "\n| code | service action | data out | data in | permissions |\n".to_owned();
    table += "|---|---|---|---|---|\n";
    for ServiceActionRow { about, code, name } in rows {
        let cell = |verb: &str| {
            let mut sentences = about.trim_end_matches('.').split(". ");
            sentences.find_map(|sentence| sentence.strip_prefix(verb)).map(str::trim)
        };
        let (sends, returns) = (cell("Sends ").unwrap_or("-"), cell("Returns ").unwrap_or("-"));
        let needs = cell("Needs the permissions ").or_else(|| cell("Needs the permission "));
        let needs = needs.with_context(|| format!("{name} has no permissions"))?;
        table += &format!("| {code:04X} | {name} | {sends} | {returns} | {needs} |\n");
    }
    Ok(table + "\n")
}

fn is_named(of: &syn::Type, name: &str) -> bool {
    matches!(of, syn::Type::Path(of) if of.path.is_ident(name))
}

/// Returns the numbers of the sense keys, by their names.
fn sense_keys(items: &[Item]) -> Result<BTreeMap<String, u8>> {
    let found = items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "SenseKey" => Some(item),
        _ => None,
    });
    let keys = found.context("there is no enum SenseKey")?.variants.iter();
    let keys = keys.filter_map(|key| {
        let (_, value) = key.discriminant.as_ref()?;
        Some((key.ident.to_string(), number(value)?))
    });
    Ok(keys.collect())
}

/// Returns the value of an integer literal.
fn number(expression: &Expr) -> Option<u8> {
    match expression {
        Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_parse().ok(),
        _ => None,
    }
}

/// Describes for the table how a text key with this `KeyKind` is negotiated.
fn negotiated(kind: &Expr, constants: &BTreeMap<String, &Expr>) -> Result<String> {
    let name = last_name(kind).context("a row without a kind")?;
    if let Some(constant) = constants.get(&name) {
        return negotiated(constant, constants);
    }
    let value = match kind {
        Expr::Call(call) => call.args.first(),
        _ => None,
    };
    Ok(match (name.as_str(), value) {
        ("Declared", Some(by)) => {
            let by = last_name(by).context("a role")?.to_lowercase();
            format!("declared by the {by}")
        }
        ("DeclaredByBoth", _) => "declared by each".to_owned(),
        ("List", _) => "first that both support".to_owned(),
        ("Or", _) => "Yes if one says Yes".to_owned(),
        ("And", _) => "Yes if both say Yes".to_owned(),
        ("Minimum", _) => "smaller".to_owned(),
        ("Maximum", _) => "larger".to_owned(),
        ("Obsolete", Some(answer)) => {
            format!("obsolete: answered {}", text(answer).context("an answer")?)
        }
        _ => bail!("the page has no words for the kind {name}"),
    })
}

/// Returns the variants of the enum `name`, each with its doc comment.
fn variants(items: &[Item], name: &str) -> Result<BTreeMap<String, String>> {
    let found = items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == name => Some(item),
        _ => None,
    });
    let variants = found.with_context(|| format!("there is no enum {name}"))?.variants.iter();
    Ok(variants.map(|v| (v.ident.to_string(), first_paragraph(&v.attrs))).collect())
}

/// Returns the values of all constants, by the constants' names.
fn constants(items: &[Item]) -> BTreeMap<String, &Expr> {
    let constants = items.iter().filter_map(|item| match item {
        Item::Const(item) => Some((item.ident.to_string(), &*item.expr)),
        _ => None,
    });
    constants.collect()
}

/// Returns the last name of a path, or of the function in a call.
fn last_name(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        Expr::Call(call) => last_name(&call.func),
        _ => None,
    }
}

/// Returns the text of a string literal.
fn text(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_data_has_its_codes_and_the_first_paragraph() {
        let source = "enum SenseKey { NotReady = 0x2, Miscompare = 0xe } impl Sense { \
            pub const B_C: Self = Self::new(SenseKey::Miscompare, 0x1d, 0x00); \
            /// Ejected.\n///\n/// For the code.\n\
            pub const A: Self = Self::new(SenseKey::NotReady, 0x3a, 0x01); }";
        let undocumented = syn::parse_file(source).unwrap().items;
        let error = sense_data(&undocumented).unwrap_err().to_string();
        assert_eq!(error, "B C has no doc comment");
        let source = source.replace("pub const B_C", "/** Other data. */ pub const B_C");
        let table = sense_data(&syn::parse_file(&source).unwrap().items).unwrap();
        let rows = "| 2/3A/01 | A | Ejected. |\n| E/1D/00 | B C | Other data. |\n";
        assert!(table.contains(rows), "{table}");
    }

    #[test]
    fn a_service_action_has_its_data_and_permissions() {
        let source = "service_actions! { /** Sends data. Needs the permissions write; global. */ Write = 0x8886, \
            \"WRITE\"; /** Needs the permission remove. */ Remove = 0x888a, \"REMOVE\"; }";
        let table = service_actions(&syn::parse_file(source).unwrap().items).unwrap();
        let rows =
            "| 8886 | WRITE | data | - | write; global |\n| 888A | REMOVE | - | - | remove |\n";
        assert!(table.contains(rows), "{table}");
        let source = source.replace("Needs the permission remove", "Removes");
        let error = service_actions(&syn::parse_file(&source).unwrap().items).unwrap_err();
        assert_eq!(error.to_string(), "REMOVE has no permissions");
    }

    #[test]
    fn a_command_has_its_codes_name_and_notes() {
        let source = "enum BlockCommand { /** 28, 88: READ (SBC-3, 5.7). Stable; always. */ Read } \
            enum PrimaryCommand { /** 12: INQUIRY (SPC-4, 6.6). */ Inquiry } enum VendorCommand {}";
        let items = syn::parse_file(source).unwrap().items;
        let expected =
            "| 12 | INQUIRY (SPC-4, 6.6) | |\n| 28, 88 | READ (SBC-3, 5.7) | Stable; always |\n";
        let table = commands(&items).unwrap();
        assert!(table.contains(expected), "{table}");
        let items = syn::parse_file(&source.replace("12: ", "")).unwrap().items;
        let error = commands(&items).unwrap_err().to_string();
        assert_eq!(error, "PrimaryCommand::Inquiry has no operation codes");
    }

    #[test]
    fn a_text_key_has_its_rule_and_its_comment() {
        let source = "enum TextKey { /** Up to 4. */ MaxConnections, /** Sent once. */ TargetAlias } \
            const BY_TARGET: KeyKind = KeyKind::Declared(IscsiRole::Target); \
            const TABLE: [Row; 2] = [ \
                normal(TextKey::MaxConnections, \"MaxConnections\", KeyKind::Minimum(1, 2)), \
                row(TextKey::TargetAlias, \"TargetAlias\", ANY, BY_TARGET)];";
        let items = syn::parse_file(source).unwrap().items;
        let table = text_keys(&items).unwrap();
        let expected = "| MaxConnections | smaller; not for discovery | Up to 4. |\n\
            | TargetAlias | declared by the target | Sent once. |\n";
        assert!(table.contains(expected), "{table}");
        let items = syn::parse_file(&source.replace("/** Up to 4. */", "")).unwrap().items;
        let error = text_keys(&items).unwrap_err().to_string();
        assert_eq!(error, "the key MaxConnections has no doc comment");
    }
}
