//! Report sections for Table 1 of the outsourcing paper (single requests of one thread) and for
//! requests of several sizes.

use super::{delays, equation, storage_sentence, table_1_point as point, way};
use crate::{
    Cell, Curve, MeasuredPoints, Plot, ReportTable, Section, deviation,
    paper::{
        PaperFigure,
        outsourcing::{
            ACCESSES, DISKS, DISKS_SHOWN, MB, MISPRINTS, NULL_64K_MB_S, REQUEST_BYTES, RESPONSE_MS,
            THROUGHPUT_MB_S, WAYS,
        },
    },
    rounded,
};

/// Returns the report section for Table 1 of the outsourcing paper: single requests of 8 KiB.
pub fn table_1(measured: &MeasuredPoints<'_>) -> Section {
    let mut section = Section::new("Table 1: single requests of 8 KiB")
        .text(
            "One thread sends one request at a time to a raw device. Throughput is 8 KiB divided by the response time, in the paper's MB of 1000 × \
             1024 bytes. \"Local\" is a disk of the host's own, \"target\" one of the gateway's without the network. The paper also describes \
             identical requests, which hit the disk's cache, but without numbers.",
        )
        .text(&storage_sentence(measured, "table-1/"))
        .text(
            "The paper's array has a cache of 128 MB; `cache` is the size of ours if it differs from the model's, so that a short run fills it. \
             With `cache_protected` the content of the cache is safe, and a flush costs nothing.",
        )
        .text(
            "In drawings the dotted line is the prediction of the last rule of the next section from our own disk and protocol times.",
        );
    let iscsi = equation::protocol(measured);
    for (n, disk) in DISKS.into_iter().enumerate() {
        section = section.table(times(measured, n)).plot(plot(measured, n, iscsi));
        section = section.table(rates(measured, n));
        section.deviations.extend(slopes(measured, n, disk));
    }
    section.misprints.extend(MISPRINTS[..2].iter().map(crate::paper::Misprint::text));
    section
}

fn times(measured: &MeasuredPoints<'_>, n: usize) -> ReportTable {
    let disk = DISKS[n];
    let mut table =
        ReportTable::new(&format!("{}: response time", DISKS_SHOWN[n]), "one-way delay");
    let is_there =
        |access: &&str| measured.starting(&format!("table-1/{disk}/{access}/")).next().is_some();
    let hits = ["identical-read", "identical-write"].into_iter().filter(is_there);
    let accesses: Vec<&str> = ACCESSES.into_iter().chain(hits).collect();
    for access in &accesses {
        table = table.column(&access.replace('-', " "), "ms");
    }
    table.rows(
        WAYS.into_iter().enumerate(),
        |(_, at)| way(at),
        |&(row, at)| {
            let time = |(column, access): (usize, &&str)| {
                let paper = RESPONSE_MS[row][n].get(column).copied();
                measured.cell(&point(disk, access, at), "", "ms").beside(paper)
            };
            accesses.iter().enumerate().map(time).collect::<Vec<_>>()
        },
    )
}

fn rates(measured: &MeasuredPoints<'_>, n: usize) -> ReportTable {
    let mut table = ReportTable::new(&format!("{}: throughput", DISKS_SHOWN[n]), "one-way delay");
    for access in ACCESSES {
        table = table.column(&access.replace('-', " "), "MB/s");
    }
    table.rows(
        WAYS.into_iter().enumerate(),
        |(_, at)| way(at),
        |&(row, at)| {
            ACCESSES.into_iter().enumerate().map(move |(column, access)| {
                let cell = measured.cell(&point(DISKS[n], access, at), "", "ms");
                let cell = cell.converted(|ms| throughput(REQUEST_BYTES, ms));
                cell.beside(THROUGHPUT_MB_S[row][n][column])
            })
        },
    )
}

/// Converts the time of a request to throughput in the paper's MB/s.
fn throughput(bytes: f64, ms: f64) -> f64 {
    bytes / MB / (ms / 1000.0)
}

fn plot(measured: &MeasuredPoints<'_>, n: usize, iscsi: Option<f64>) -> Plot {
    let title = format!("{}: response time over distance", DISKS_SHOWN[n]);
    let mut plot = Plot::new(&title, "one-way delay, ms", "response time, ms").y_logarithmic();
    for (column, access) in ACCESSES.into_iter().enumerate() {
        let name = access.replace('-', " ");
        let sweep = delays().map(|(delay, at)| (delay, point(DISKS[n], access, at)));
        plot = plot.curve(measured.curve(&name, sweep, "", "ms"));
        let paper =
            delays().zip(&RESPONSE_MS[2..]).map(|((delay, _), row)| [delay, row[n][column]]);
        plot = plot.curve(Curve::paper(&name, paper));
        let foretold = delays().filter_map(|(delay, at)| {
            Some([delay, equation::foretold(measured, n, column, at, delay, iscsi?)?])
        });
        let foretold: Vec<_> = foretold.collect();
        if !foretold.is_empty() {
            plot = plot.curve(Curve::model(&name, foretold));
        }
    }
    plot
}

/// Returns a sentence for the report (a deviation) for each access that a delay of 8 ms makes longer by more or less
/// than in the paper, with the disk's own time as the explanation.
fn slopes(measured: &MeasuredPoints<'_>, n: usize, disk: &str) -> Vec<String> {
    let deviation = |(column, access): (usize, &str)| {
        let time = |at: &str| measured.value(&point(disk, access, at), "", "ms");
        let ours = time("8ms")? - time("0ms")?;
        let paper = RESPONSE_MS[6][n][column] - RESPONSE_MS[2][n][column];
        if (ours - paper).abs() <= (paper / 10.0).max(crate::latency_model::TOLERANCE) {
            return None;
        }
        let alone = time("local").map_or_else(String::new, |local| {
            format!(
                " The disk alone takes {} here and {} there.",
                rounded(local),
                rounded(RESPONSE_MS[0][n][column])
            )
        });
        Some(format!(
            "{}, {}: from 0 to 8 ms a request becomes {} ms longer here, and {} ms in the paper.{alone}",
            DISKS_SHOWN[n],
            access.replace('-', " "),
            rounded(ours),
            rounded(paper),
        ))
    };
    ACCESSES.into_iter().enumerate().filter_map(deviation).collect()
}

/// The sizes of the sweep: bytes, and the word in the names of measured points.
const SIZES: [(f64, &str); 7] = [
    (1024.0, "1k"),
    (2048.0, "2k"),
    (4096.0, "4k"),
    (8192.0, "8k"),
    (16_384.0, "16k"),
    (32_768.0, "32k"),
    (65_536.0, "64k"),
];

/// Returns the section for requests of 1 to 64 KiB.
pub fn sweep(measured: &MeasuredPoints<'_>) -> Section {
    let mut section = Section::new("Requests of 1 to 64 KiB")
        .text(
            "The same requests of other sizes on the null device, so that only network and protocol remain. The paper measured these sizes but \
             prints only two numbers: about 18 MB/s with 8 KiB and about 30 MB/s with 64 KiB, both at 0 ms.",
        )
        .text(&storage_sentence(measured, "sweep/"));
    for access in ["random-read", "random-write", "sequential-read", "sequential-write"] {
        // Skip accesses that a quick run does not measure. Keep sequential reads even if
        // unmeasured, since the paper prints a number for them.
        let start = format!("sweep/null/{access}/");
        if measured.starting(&start).next().is_none() && access != "sequential-read" {
            continue;
        }
        let name = format!("Throughput of {}s", access.replace('-', " "));
        let point = |size: &str, at: &str| format!("{start}{size}/{at}");
        let rate = |size: f64, word: &str, at: &str| {
            let cell = measured.cell(&point(word, at), "", "ms");
            let cell = cell.converted(|ms| throughput(size, ms));
            let is_named = word == "64k" && at == "0ms" && access == "sequential-read";
            cell.beside(is_named.then_some(NULL_64K_MB_S))
        };
        let mut table = ReportTable::new(&name, "request");
        let mut plot = Plot::new(&name, "request size, KiB", "throughput, MB/s")
            .x_logarithmic()
            .y_logarithmic();
        for (_, at) in delays() {
            table = table.column(&way(at), "MB/s");
            let points = SIZES
                .iter()
                .filter_map(|(size, word)| Some([size / 1024.0, rate(*size, word, at).ours?]));
            plot = plot.curve(Curve::ours(&way(at), points));
        }
        let table = table.rows(
            SIZES,
            |(size, _)| format!("{} KiB", size / 1024.0),
            |(size, word)| delays().map(|(_, at)| rate(*size, word, at)).collect::<Vec<Cell>>(),
        );
        section = section.table(table.without_blanks()).plot(plot);
        if access == "sequential-read" {
            let cell = rate(65_536.0, "64k", "0ms");
            let claim = PaperFigure::number("Section 4.1", "MB/s", NULL_64K_MB_S);
            let what = "sequential reads of 64 KiB at 0 ms";
            section.deviations.extend(deviation(what, &cell, &claim, [of_8_kib(measured)]));
        }
    }
    section
}

/// Compares the time of a sequential read of 8 KiB here and in the paper. The comparison explains a difference in
/// throughput, since a request spends most of its time on other work than data transfer.
fn of_8_kib(measured: &MeasuredPoints<'_>) -> Option<String> {
    let ours = measured.value(&point("null", "sequential-read", "0ms"), "", "ms")?;
    Some(format!(
        "A request of 8 KiB takes {} ms here and {} in the paper.",
        rounded(ours),
        rounded(RESPONSE_MS[2][3][2])
    ))
}
