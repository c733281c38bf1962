//! `forebay claim`: shows or drops the right of one log to write a unit of the node.

use control::{ClaimStatus, ControlRequest, ControlResponse, Failure};

use crate::{cli::ClaimAct, control_socket, output::print_line};

pub fn run(act: ClaimAct) -> Result<(), Failure> {
    match act {
        ClaimAct::Show(args) => {
            let claims = ask(ControlRequest::Claim { unit: args.unit.clone() }, &args.told.whom)?;
            if args.told.json {
                return print_line(serde_json::to_string(&claims).map_err(Failure::new)?);
            }
            if claims.is_empty() {
                return print_line(format_args!("{}: never claimed", args.unit));
            }
            claims.iter().try_for_each(|claim| print_line(format_args!("{}: {claim}", args.unit)))
        }
        ClaimAct::Drop { unit, lose_dirty_data, hosts_unmounted, whom } => {
            let asked =
                ControlRequest::DropClaim { unit: unit.clone(), lose_dirty_data, hosts_unmounted };
            let dropped = ask(asked, &whom)?;
            if dropped.is_empty() {
                return print_line(format_args!("{unit}: never claimed"));
            }
            dropped.iter().try_for_each(|claim| {
                let who = if claim.share.is_some() {
                    "the gateways that share it"
                } else {
                    "any initiator"
                };
                print_line(format_args!(
                    "{unit}: {who} may write to it now. Data that log {} of {} still has is \
                     refused; its gateway reports this to its hosts",
                    claim.log, claim.owner
                ))
            })
        }
    }
}

fn ask(request: ControlRequest, whom: &crate::cli::Whom) -> Result<Vec<ClaimStatus>, Failure> {
    match control_socket::ask(&whom.path()?, request)? {
        ControlResponse::Claims(claims) => Ok(claims),
        other => Err(other.unexpected()),
    }
}
