//! Counters of several parts in one form, for `status --json`.

use iscsi::PduSizes;
use scsi::name_of_opcode;
use serde_json::{Map, Value, json};
use volume::TimeHistogramSnapshot;

/// Times in microseconds: how many, mean, quantiles, and each class that has any with its end.
pub fn times(taken: &TimeHistogramSnapshot) -> Value {
    let us = |time: std::time::Duration| (time.as_nanos() as f64 / 100.0).round() / 10.0;
    let classes: Vec<_> = taken.classes().map(|(end, count)| json!([us(end), count])).collect();
    json!({
        "count": taken.count(),
        "mean_us": us(taken.mean()),
        "p50_us": us(taken.quantile(0.5)),
        "p90_us": us(taken.quantile(0.9)),
        "p99_us": us(taken.quantile(0.99)),
        "p999_us": us(taken.quantile(0.999)),
        "max_us": us(taken.quantile(1.0)),
        "classes_us": classes,
    })
}

/// Commands by name.
pub fn commands(counted: &[(u8, u64)]) -> Value {
    let commands = counted.iter().map(|(opcode, count)| (name_of_opcode(*opcode), (*count).into()));
    Value::Object(commands.collect::<Map<_, _>>())
}

/// PDUs by size in bytes, and the bytes in them.
pub fn sizes(sizes: &PduSizes) -> Value {
    let names = ["below_64", "below_128", "below_256", "below_512", "below_1024", "from_1024"];
    let classes =
        names.into_iter().zip(sizes.classes).map(|(name, pdus)| (name.to_owned(), pdus.into()));
    let bytes = ("bytes".to_owned(), sizes.bytes.into());
    Value::Object(classes.chain([bytes]).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn figures_have_names_and_units() {
        let taken = volume::TimeHistogram::default();
        taken.add(Duration::from_micros(100), 2);
        let told = times(&taken.taken());
        assert_eq!((&told["count"], &told["mean_us"]), (&json!(2), &json!(100.0)));
        assert_eq!(told["classes_us"].as_array().map(Vec::len), Some(1));
        assert_eq!(commands(&[(0x28, 7), (0xc1, 1)]), json!({ "READ(10)": 7, "C1h": 1 }));
        let mut pdus = PduSizes::default();
        pdus.count(100);
        assert_eq!((&sizes(&pdus)["below_128"], &sizes(&pdus)["bytes"]), (&json!(1), &json!(100)));
    }
}
