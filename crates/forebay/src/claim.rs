//! `forebay claim`: who alone may change a unit of the node, and ending that.

use crate::{
    cli::ClaimAct,
    control::{self, Request, Response},
    failure::Failure,
    output::print_line,
    status::ClaimStatus,
};

/// Does what the command line says.
pub fn run(act: ClaimAct) -> Result<(), Failure> {
    match act {
        ClaimAct::Show(args) => {
            let claim = ask(Request::Claim { unit: args.unit.clone() }, &args.told.whom)?;
            if args.told.json {
                return print_line(serde_json::to_string(&claim).map_err(Failure::new)?);
            }
            match claim {
                Some(claim) => print_line(format_args!("{}: {claim}", args.unit)),
                None => print_line(format_args!("{}: never claimed", args.unit)),
            }
        }
        ClaimAct::Drop { unit, lose_dirty_data, whom } => {
            let asked = Request::DropClaim { unit: unit.clone(), lose_dirty_data };
            match ask(asked, &whom)? {
                Some(claim) => print_line(format_args!(
                    "{unit}: anybody may write there now. What log {} of {} still has is refused; \
                     its gateway tells its hosts so",
                    claim.log, claim.owner
                )),
                None => print_line(format_args!("{unit}: never claimed")),
            }
        }
    }
}

fn ask(request: Request, whom: &crate::cli::Whom) -> Result<Option<ClaimStatus>, Failure> {
    match control::ask(&whom.path()?, request)? {
        Response::Claim(claim) => Ok(claim),
        other => Err(other.unexpected()),
    }
}
