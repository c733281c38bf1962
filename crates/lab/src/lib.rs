//! The laboratory: nodes, gateways and hosts with distance between them on one machine, workloads run
//! there, and a report that sets what a paper says beside what was found.

mod maker;
mod record;
mod report;
mod markup;
mod draw;
mod page;
mod csv;
pub mod paper;
mod judged;
pub mod model;
mod site;
mod measured;
mod point;
mod windows;
mod error;
mod beside;
mod stage;
pub mod outsourcing;
pub mod stics;
pub mod fair_tcp;
mod experiment;
mod results;
pub mod engine;
mod before;

pub use before::{Lack, Means, Plan};
pub use beside::beside;
pub use csv::csv;
pub use error::Error;
pub use experiment::Experiment;
pub use judged::{NO_REASON, TOLERANCE, because, contradiction, deviation};
pub use maker::maker;
pub use measured::Measured;
pub use page::page;
pub use point::{Point, Scale};
pub use record::Record;
pub use report::{
    Axis, Bar, Cell, Column, Curve, Drawn, NOT_MEASURED, Part, Plot, Printed, Report, Row, Section,
    Source, Table, factor, number,
};
pub use results::{LeftOut, Results};
pub use site::{Beside, Data, Disk, Gateway, Host, Line, Server, Session, Site};
pub use stage::{Found, Scene, Setting, Stage};
pub use windows::{Sampler, Watch, Windows};
