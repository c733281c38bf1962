//! The laboratory: nodes, gateways and hosts on one machine with emulated distance between them, workloads that run
//! there, and reports that compare the results with the papers.

mod provenance;
mod point_record;
mod report;
mod html_escape;
mod draw;
mod page;
mod csv;
pub mod paper;
mod paper_comparison;
pub mod latency_model;
mod site;
mod measured_points;
mod point;
mod congestion_windows;
mod error;
mod external_figures;
mod stage;
pub mod outsourcing;
pub mod stics;
pub mod fair_tcp;
mod experiment;
mod results;
pub mod engine;
mod preflight;

pub use congestion_windows::{Sampler, SamplerScope, Windows};
pub use csv::csv;
pub use error::Error;
pub use experiment::Experiment;
pub use external_figures::beside;
pub use measured_points::MeasuredPoints;
pub use page::page;
pub use paper_comparison::{NO_REASON, TOLERANCE, because, contradiction, deviation};
pub use point::{ExperimentPoint, ExperimentScale};
pub use point_record::PointRecord;
pub use preflight::{Lack, Means, MeasurementPlan};
pub use provenance::maker;
pub use report::{
    Axis, Cell, CellBound, ClaimResult, Curve, CurveSource, Doubt, Drawn, Finding, LabReport,
    MeasuredRatio, NOT_MEASURED, PaperClaim, Plot, PointCount, Printed, ReportColumn, ReportRow,
    ReportTable, RunProgress, Section, SectionPart, doubt_kind, doubts, factor, not_measured,
    number, quartiles, rounded,
};
pub use results::{LeftOut, Results};
pub use site::{
    GatewayPlacement, Host, LabSite, SiteBacking, SiteDisk, SiteGateway, SiteLink, SiteServer,
    SiteSession,
};
pub use stage::{LabStage, PointRunResult, Scene, Setting};
