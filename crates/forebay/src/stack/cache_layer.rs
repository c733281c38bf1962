//! The cache of a gateway as a layer: comes with the cache.

use serde_json::{Map, Value};
use volume::Stack;

use super::remote::Known;
use crate::{failure::Failure, settings};

/// A cache at work.
pub struct CacheLayer;

/// A log disk before its cache is opened.
pub struct Log;

impl Log {
    /// The volume that its data belongs to.
    pub fn known(&self) -> Option<Known> {
        None
    }
}

/// Opens or makes the log and reads what it says of itself.
pub async fn open_log(_: &settings::Cache) -> Result<Log, Failure> {
    Err(Failure::new("there is no cache yet"))
}

/// What a log says of itself, for `forebay check`.
pub async fn describe_log(_: &settings::Cache, _: &Stack) -> Result<String, Failure> {
    Err(Failure::new("there is no cache yet"))
}

impl CacheLayer {
    /// Opens the cache over `lower` and starts its destage.
    pub async fn open(_: &settings::Cache, _: Stack, _: Log, _: &str) -> Result<Self, Failure> {
        Err(Failure::new("there is no cache yet"))
    }

    /// What upper layers see.
    pub fn volume(&self) -> Stack {
        unreachable!("never opened")
    }

    /// Ends destage and leaves the log in order; what is dirty stays in it.
    pub async fn stop(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Counters and levels.
    pub fn figures(&self) -> Map<String, Value> {
        Map::new()
    }
}
