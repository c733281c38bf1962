//! `forebay lab wan exec`: runs a program at one end of an emulated link.

use std::os::unix::process::CommandExt;

use control::Failure;
use wan::WanLinkEnd;

use super::arguments::Exec;
use super::link_failure::failed;

/// Replaces this process by the requested program. Returns only if that fails.
pub fn exec(args: &Exec) -> Result<(), Failure> {
    let (end, name) = (WanLinkEnd::from(args.end), &args.named.name);
    let mut command = end.command(name).map_err(failed)?.ok_or_else(|| {
        Failure::new(format!("there is no link {name}: no namespace {}", end.namespace(name)))
            .remedy(format!("start it with `forebay lab wan run --name {name}`"))
    })?;
    let error = command.args(&args.command).exec();
    Err(Failure::new(format!("cannot run `ip`: {error}"))
        .remedy("install it (`apt-get install iproute2`), and run this command as root"))
}
