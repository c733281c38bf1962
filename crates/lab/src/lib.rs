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

pub use before::{Lack, Means, MeasurementPlan};
pub use beside::beside;
pub use csv::csv;
pub use error::Error;
pub use experiment::Experiment;
pub use judged::{NO_REASON, TOLERANCE, because, contradiction, deviation};
pub use maker::maker;
pub use measured::MeasuredPoints;
pub use page::page;
pub use point::{ExperimentPoint, ExperimentScale};
pub use record::PointRecord;
pub use report::{
    Axis, Cell, CellBound, Curve, CurveSource, Drawn, LabReport, NOT_MEASURED, Plot, Printed,
    ReportColumn, ReportRow, ReportTable, Section, SectionPart, factor, number,
};
pub use results::{LeftOut, Results};
pub use site::{
    GatewayPlacement, Host, LabSite, SiteBacking, SiteDisk, SiteGateway, SiteLink, SiteServer,
    SiteSession,
};
pub use stage::{LabStage, PointRunResult, Scene, Setting};
pub use windows::{Sampler, SamplerScope, Windows};
