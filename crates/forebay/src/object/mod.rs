//! `forebay object`: keys, partitions, objects and attributes of an object drive.

mod hex;
mod errors;
mod key_file;
mod credential_file;
mod connect;
mod interrupted;
mod show;
mod attributes;
mod collection;
mod transfer;
mod create;
mod snapshot;
mod keys;
mod grant;
mod verify;

use control::Failure;
use serde_json::json;

use crate::{cli::ObjectAct, output::print_line};

pub async fn run(act: ObjectAct) -> Result<(), Failure> {
    match act {
        ObjectAct::Key { file, json } => {
            key_file::make(&file)?;
            if json { print_line(json!({ "file": file.display().to_string() })) } else { Ok(()) }
        }
        ObjectAct::Format { drive, lose_data } => keys::format(&drive, lose_data).await,
        ObjectAct::Info { drive, object } => attributes::info(&drive, object).await,
        ObjectAct::List { drive, partition, long, collections } => {
            show::list(&drive, partition, long, collections).await
        }
        ObjectAct::Create { drive, object, partition, count } => {
            create::create(&drive, object, partition, count).await
        }
        ObjectAct::Put { drive, object, file, resume, state } => {
            transfer::put(&drive, object, &file, resume, state.as_deref()).await
        }
        ObjectAct::Get { drive, object, file, resume } => {
            transfer::get(&drive, object, &file, resume).await
        }
        ObjectAct::Append { drive, object, file, resume, state } => {
            transfer::append(&drive, object, &file, resume, state.as_deref()).await
        }
        ObjectAct::Remove { drive, object, with_contents, collection } => {
            create::remove(&drive, object, with_contents, collection).await
        }
        ObjectAct::Attributes { drive, object, get, set } => {
            attributes::attributes(&drive, object, &get, &set).await
        }
        ObjectAct::Collection { drive, collection, add, drop } => {
            collection::run(&drive, collection, add, drop).await
        }
        ObjectAct::Query { drive, collection, criteria, any } => {
            collection::query(&drive, collection, &criteria, any).await
        }
        ObjectAct::Map { drive, object } => show::map(&drive, object).await,
        ObjectAct::Snapshot { drive, partition, clone_it, detach, refresh, restore } => {
            let change = snapshot::Change { clone_it, detach, refresh, restore };
            snapshot::run(&drive, partition, change).await
        }
        ObjectAct::SetKey { drive, partition, force, all } => match all {
            true => keys::set_all(&drive, force).await,
            false => keys::set_key(&drive, partition, force).await,
        },
        ObjectAct::Grant { drive, object, permissions, expires, out } => {
            grant::grant(&drive, object, &permissions, expires, &out).await
        }
        ObjectAct::Revoke { drive, object } => grant::revoke(&drive, object).await,
        ObjectAct::Verify { drive, object } => verify::run(&drive, object).await,
    }
}
