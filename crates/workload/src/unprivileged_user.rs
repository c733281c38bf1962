//! Selects the user for servers that refuse to run as root.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::Path,
    process::Command,
};

use rustix::process::geteuid;

use crate::Error;

/// The user as whom servers run: if the caller is root, a user without privileges (`Some`); otherwise the current user
/// (`None`).
pub(crate) struct UnprivilegedUser(Option<SystemAccount>);

struct SystemAccount {
    name: String,
    uid: u32,
    gid: u32,
}

impl UnprivilegedUser {
    /// Returns the first of these users that exists on the system. If the caller is not root,
    /// returns the current user.
    ///
    /// # Errors
    /// If none of the users exists.
    pub(crate) fn without_privilege(names: &[&str]) -> Result<Self, Error> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = fs::read_to_string("/etc/passwd").map_err(Error::system("read /etc/passwd"))?;
        let found = names.iter().find_map(|name| known(&users, name));
        let none = || {
            Error::Settings(format!(
                "the program must not run as root, and none of the users {names:?} exists"
            ))
        };
        Ok(Self(Some(found.ok_or_else(none)?)))
    }

    /// Makes `command` run its program as this user.
    pub(crate) fn run<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        match &self.0 {
            Some(user) => command.uid(user.uid).gid(user.gid),
            None => command,
        }
    }

    /// Makes this user the owner of a folder.
    ///
    /// # Errors
    /// If the system refuses it, or if the user has no permission to enter one of the folders
    /// above.
    pub(crate) fn take(&self, folder: &Path) -> Result<(), Error> {
        let Some(user) = &self.0 else { return Ok(()) };
        let failed = Error::system(format!("give {} to {}", folder.display(), user.name));
        chown(folder, Some(user.uid), Some(user.gid)).map_err(failed)?;
        if is_open(folder) {
            return Ok(());
        }
        let what = "other users cannot enter a folder above it (chmod a+x)";
        let (name, folder) = (&user.name, folder.display());
        Err(Error::Settings(format!("user {name} cannot access {folder}: {what}")))
    }
}

/// Returns true if every user may enter all folders above `folder`.
fn is_open(folder: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let all_may = |above: &Path| above.metadata().is_ok_and(|about| about.mode() & 0o001 != 0);
    folder.ancestors().skip(1).all(all_may)
}

fn known(users: &str, name: &str) -> Option<SystemAccount> {
    let of = |line: &str| {
        let words: Vec<&str> = line.split(':').collect();
        let (uid, gid) = (words.get(2)?.parse().ok()?, words.get(3)?.parse().ok()?);
        (words[0] == name).then(|| SystemAccount { name: name.to_owned(), uid, gid })
    };
    users.lines().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\npostgres2:x:9:9::/:\npostgres:x:101:103:,,,:/:/bin/sh\n";
        let user = known(users, "postgres").unwrap();
        assert_eq!((user.uid, user.gid), (101, 103));
        assert!(known(users, "nobody").is_none());
    }
}
