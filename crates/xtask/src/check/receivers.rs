//! Finds the type of an expression without the compiler, as far as needed to find the type whose method is called.
//!
//! References, smart pointers, locks, options and lists are looked through: the type of `&Arc<Mutex<State>>` is
//! `State`.

use std::collections::{BTreeMap, BTreeSet};

use syn::{Expr, GenericArgument, Ident, Item, Member, Pat, Path, PathArguments};
use syn::{ReturnType, Signature, Type, UseTree};

use crate::check::tree::{SourceFile, stem};

/// Wrapper types: a method call on a value of such a type counts as a call on the wrapped value.
const WRAPPERS: [&str; 17] = [
    "Arc",
    "BTreeMap",
    "Box",
    "Cell",
    "HashMap",
    "Mutex",
    "MutexGuard",
    "OnceLock",
    "Option",
    "Pin",
    "Rc",
    "RefCell",
    "Result",
    "RwLock",
    "Vec",
    "VecDeque",
    "Weak",
];

/// Methods of [`WRAPPERS`], and of iterators over them, that return the wrapped value or a
/// reference to it.
const PASSING: [&str; 28] = [
    "and_then",
    "as_deref",
    "as_deref_mut",
    "as_mut",
    "as_ref",
    "await",
    "borrow",
    "borrow_mut",
    "clone",
    "cloned",
    "downgrade",
    "expect",
    "filter",
    "get",
    "get_mut",
    "get_or_init",
    "iter",
    "iter_mut",
    "last",
    "lock",
    "ok",
    "ok_or_else",
    "read",
    "take",
    "unwrap",
    "upgrade",
    "values",
    "write",
];

/// The types, fields and functions of a crate.
///
/// A type is identified by its name or, if several types of the crate have this name, by name and file. A type of
/// another crate is only a name.
#[derive(Default)]
pub struct CrateTypeIndex {
    /// The files in which types of a name are defined.
    types: BTreeMap<String, BTreeSet<String>>,
    identities: BTreeSet<String>,
    /// For each file and each name that it imports, the module that the name comes from.
    imports: BTreeMap<(String, String), String>,
    /// The type of each field, by struct and field.
    fields: BTreeMap<(String, String), String>,
    /// The file and the type of the result of each method, by type and method.
    methods: BTreeMap<(String, String), (String, Option<String>)>,
    /// For each method name, the types that have such a method.
    owners: BTreeMap<String, BTreeSet<String>>,
    /// The free functions of each name.
    functions: BTreeMap<String, Vec<Function>>,
}

/// A free function that has parameters of types of the crate.
pub struct Function {
    /// The path of the file that defines the function.
    pub file: String,
    /// The types of the crate among the parameters.
    pub takes: Vec<String>,
    result: Option<String>,
}

impl CrateTypeIndex {
    /// Collects the types that a crate defines, and the types of their fields.
    pub fn read(files: &[&SourceFile]) -> CrateTypeIndex {
        let mut known = CrateTypeIndex::default();
        for file in files {
            known.add_types(&file.path, &file.syntax.items);
        }
        for (name, places) in &known.types {
            known.identities.extend(places.iter().map(|place| identity(name, place, places.len())));
        }
        for file in files {
            known.add_fields(&file.path, &file.syntax.items);
        }
        known
    }

    fn add_types(&mut self, file: &str, items: &[Item]) {
        let mut add = |name: &Ident| {
            self.types.entry(name.to_string()).or_default().insert(file.to_owned());
        };
        for item in items {
            match item {
                Item::Struct(item) => add(&item.ident),
                Item::Enum(item) => add(&item.ident),
                Item::Use(item) => {
                    let mut names = vec![];
                    imported(&item.tree, "", &mut names);
                    let names = names.into_iter();
                    self.imports
                        .extend(names.map(|(name, module)| ((file.to_owned(), name), module)));
                }
                _ => {}
            }
        }
    }

    fn add_fields(&mut self, file: &str, items: &[Item]) {
        for item in items {
            let Item::Struct(item) = item else { continue };
            let Some(owner) = self.identify(&item.ident.to_string(), file) else { continue };
            for (number, field) in item.fields.iter().enumerate() {
                let name = field.ident.as_ref().map_or(number.to_string(), ToString::to_string);
                if let Some(of) = peel(&field.ty) {
                    let of = self.identify(&of, file).unwrap_or(of);
                    self.fields.insert((owner.clone(), name), of);
                }
            }
        }
    }

    /// Returns the type that a name stands for in a file. If several types of the crate have the name, returns the one
    /// that the file defines or imports. If the import names a module and several modules have that name, takes the
    /// module whose path has the longest common start with the file's.
    pub fn identify(&self, name: &str, file: &str) -> Option<String> {
        let places = self.types.get(name)?;
        let place = if places.len() == 1 {
            places.first()?
        } else if places.contains(file) {
            file
        } else {
            let module = self.imports.get(&(file.to_owned(), name.to_owned()))?;
            nearest(places.iter().map(String::as_str), module, file)?
        };
        Some(identity(name, place, places.len()))
    }

    pub fn add_method(&mut self, owner: &str, signature: &Signature, file: &str) {
        let name = signature.ident.to_string();
        let result = self.result(signature, file).map(|result| match result.as_str() {
            "Self" => owner.to_owned(),
            _ => result,
        });
        if signature.receiver().is_some() {
            self.owners.entry(name.clone()).or_default().insert(owner.to_owned());
        }
        self.methods.insert((owner.to_owned(), name), (file.to_owned(), result));
    }

    /// Adds a free function whose parameters have the types `takes`.
    pub fn add_function(&mut self, takes: &[String], signature: &Signature, file: &str) {
        let result = self.result(signature, file);
        let function = Function { file: file.to_owned(), takes: takes.to_vec(), result };
        self.functions.entry(signature.ident.to_string()).or_default().push(function);
    }

    fn result(&self, signature: &Signature, file: &str) -> Option<String> {
        let ReturnType::Type(_, result) = &signature.output else { return None };
        let name = peel(result)?;
        Some(self.identify(&name, file).unwrap_or(name))
    }

    /// Returns the file that defines method `method` of type `owner`.
    pub fn file_of(&self, owner: &str, method: &str) -> Option<&str> {
        self.methods.get(&(owner.to_owned(), method.to_owned())).map(|(file, _)| file.as_str())
    }

    /// Returns the free function that `name` means in a file: the one of `module` if given, otherwise the one that the
    /// file defines or imports.
    pub fn function(&self, module: Option<&str>, name: &str, file: &str) -> Option<&Function> {
        let functions = self.functions.get(name)?;
        let places = functions.iter().map(|function| function.file.as_str());
        let place = match module {
            Some(module) => nearest(places, module, file)?,
            None if functions.iter().any(|function| function.file == file) => file,
            None => {
                let module = self.imports.get(&(file.to_owned(), name.to_owned()))?;
                nearest(places, module, file)?
            }
        };
        functions.iter().find(|function| function.file == place)
    }
}

/// Returns the file of the module `module` among the files `places`, as named by a `use` in `file`. If several modules
/// have the name, returns the one whose path has the longest common start with `file`.
fn nearest<'a>(places: impl Iterator<Item = &'a str>, module: &str, file: &str) -> Option<&'a str> {
    let folder = stem(file).rsplit_once('/').map(|(folder, _)| folder);
    let is_module = |place: &&str| match module {
        "super" => Some(stem(place)) == folder,
        "self" => *place == file,
        _ => stem(place).rsplit('/').next() == Some(module),
    };
    let nearness =
        |place: &&str| place.bytes().zip(file.bytes()).take_while(|(a, b)| a == b).count();
    places.filter(is_module).max_by_key(nearness)
}

/// Returns the string that identifies a type: its name and, if `count` (the number of types with this name) is more
/// than one, also its file.
fn identity(name: &str, place: &str, count: usize) -> String {
    if count == 1 { name.to_owned() } else { format!("{name} of {place}") }
}

/// Adds the names that a `use` item imports, each with the module that stands before it.
fn imported(tree: &UseTree, module: &str, names: &mut Vec<(String, String)>) {
    match tree {
        UseTree::Path(path) => imported(&path.tree, &path.ident.to_string(), names),
        UseTree::Name(name) => names.push((name.ident.to_string(), module.to_owned())),
        UseTree::Rename(name) => names.push((name.rename.to_string(), module.to_owned())),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| imported(tree, module, names));
        }
        UseTree::Glob(_) => {}
    }
}

/// The variables of one function. A name that is bound again has the type of its latest binding.
#[derive(Clone)]
pub struct FunctionScope<'a> {
    /// The types and functions of the crate that contains the function.
    pub known: &'a CrateTypeIndex,
    /// The path of the file that contains the function.
    pub file: &'a str,
    own_type: Option<String>,
    /// The type of each variable: its identity or, if it is not of the crate, its name; `None` if it was not found.
    variables: BTreeMap<String, Option<String>>,
}

impl<'a> FunctionScope<'a> {
    /// Returns the scope of a function of `file` in an `impl` block of `own_type`, or of a free function.
    pub fn new(
        known: &'a CrateTypeIndex,
        file: &'a str,
        own_type: Option<String>,
    ) -> FunctionScope<'a> {
        let variables = BTreeMap::from([("self".to_owned(), own_type.clone())]);
        FunctionScope { known, file, own_type, variables }
    }

    /// Returns the type of a parameter: its identity or, if it is not of the crate, its name.
    pub fn declared(&self, of: &Type) -> Option<String> {
        let name = peel(of)?;
        Some(self.resolve(&name).unwrap_or(name))
    }

    /// Binds the variables of a pattern. Variables inside a pattern such as `Some(name)` get the type of the whole
    /// value, since wrappers are looked through; fields of a struct pattern get their own types.
    pub fn bind(&mut self, pattern: &Pat, of: Option<String>) {
        match pattern {
            Pat::Ident(name) => drop(self.variables.insert(name.ident.to_string(), of)),
            Pat::Type(typed) => self.bind(&typed.pat, self.declared(&typed.ty)),
            Pat::Reference(reference) => self.bind(&reference.pat, of),
            Pat::Paren(inner) => self.bind(&inner.pat, of),
            Pat::TupleStruct(tuple) => {
                let is_wrapper =
                    matches!(last_segment(&tuple.path).as_deref(), Some("Some" | "Ok"));
                for element in &tuple.elems {
                    self.bind(element, of.clone().filter(|_| is_wrapper));
                }
            }
            Pat::Tuple(tuple) => tuple.elems.iter().for_each(|element| self.bind(element, None)),
            Pat::Struct(pattern) => {
                let owner = last_segment(&pattern.path).and_then(|name| self.resolve(&name));
                for field in &pattern.fields {
                    let of = owner.as_ref().and_then(|owner| self.field(owner, &field.member));
                    self.bind(&field.pat, of);
                }
            }
            _ => {}
        }
    }

    /// Returns the type of the crate that a name stands for, `Self` included.
    pub fn resolve(&self, name: &str) -> Option<String> {
        if name == "Self" {
            return self.own_type.clone();
        }
        self.known.identify(name, self.file)
    }

    /// Returns the type of the crate whose method is called: the type of `receiver` or, if that type is unknown, the
    /// only type with a method of this name.
    pub fn owner_of(&self, receiver: &Expr, method: &str) -> Option<String> {
        match self.type_of(receiver) {
            Some(owner) => Some(owner).filter(|owner| self.known.identities.contains(owner)),
            None => match self.known.owners.get(method) {
                Some(owners) if owners.len() == 1 => owners.first().cloned(),
                _ => None,
            },
        }
    }

    /// Returns the type of an expression; `None` if it cannot be determined.
    pub fn type_of(&self, expression: &Expr) -> Option<String> {
        match expression {
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                self.variables.get(&name)?.clone()
            }
            Expr::Field(field) => self.field(&self.type_of(&field.base)?, &field.member),
            Expr::Reference(inner) => self.type_of(&inner.expr),
            Expr::Paren(inner) => self.type_of(&inner.expr),
            Expr::Unary(inner) => self.type_of(&inner.expr),
            Expr::Try(inner) => self.type_of(&inner.expr),
            Expr::Await(inner) => self.type_of(&inner.base),
            Expr::Index(inner) => self.type_of(&inner.expr),
            Expr::Struct(literal) => self.resolve(&last_segment(&literal.path)?),
            Expr::MethodCall(call) => {
                let method = call.method.to_string();
                let owner = self.type_of(&call.receiver)?;
                match self.known.methods.get(&(owner.clone(), method.clone())) {
                    Some((_, result)) => result.clone(),
                    None => PASSING.contains(&method.as_str()).then_some(owner),
                }
            }
            Expr::Call(call) => self.type_of_call(&call.func, call.args.first()),
            _ => None,
        }
    }

    fn type_of_call(&self, function: &Expr, argument: Option<&Expr>) -> Option<String> {
        let Expr::Path(path) = function else { return None };
        let (owner, name) = path_names(&path.path);
        match owner.as_deref() {
            Some("Arc" | "Box" | "Rc" | "Mutex" | "Pin") => self.type_of(argument?),
            Some(owner) if self.resolve(owner).is_some() => {
                let (_, result) = self.known.methods.get(&(self.resolve(owner)?, name))?;
                result.clone()
            }
            None if name == "Some" || name == "Ok" => self.type_of(argument?),
            module => self.known.function(module, &name, self.file)?.result.clone(),
        }
    }

    fn field(&self, owner: &str, member: &Member) -> Option<String> {
        let member = match member {
            Member::Named(name) => name.to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        self.known.fields.get(&(owner.to_owned(), member)).cloned()
    }
}

/// Returns the name of a type without references and wrappers. For a wrapper with several type parameters this is the
/// last parameter, but for `Result` the first.
pub fn peel(of: &Type) -> Option<String> {
    match of {
        Type::Reference(inner) => peel(&inner.elem),
        Type::Paren(inner) => peel(&inner.elem),
        Type::Slice(inner) => peel(&inner.elem),
        Type::Array(inner) => peel(&inner.elem),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let name = last.ident.to_string();
            if !WRAPPERS.contains(&name.as_str()) {
                return Some(name);
            }
            let PathArguments::AngleBracketed(parameters) = &last.arguments else { return None };
            let mut types = parameters.args.iter().filter_map(|parameter| match parameter {
                GenericArgument::Type(of) => Some(of),
                _ => None,
            });
            peel(if name == "Result" { types.next() } else { types.last() }?)
        }
        _ => None,
    }
}

/// Returns the last name of a path: `C` of `a::b::C`.
pub fn last_segment(path: &Path) -> Option<String> {
    path.segments.last().map(|last| last.ident.to_string())
}

/// Returns the last name of a path and the one before it: `C` and `b` of `a::b::C`.
pub fn path_names(path: &Path) -> (Option<String>, String) {
    let mut names = path.segments.iter().rev().map(|segment| segment.ident.to_string());
    let name = names.next().unwrap_or_default();
    (names.next(), name)
}
