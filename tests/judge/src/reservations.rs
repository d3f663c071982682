//! Reservations, by the log of their scheduler.
//!
//! At each agreement, the reservations together fit into the processors of their clusters. An
//! agreement stands until it ends; a refusal and an end have a reason.

use std::collections::BTreeMap;

use serde_json::Value;

use super::record::Record;
use super::{Rule, Verdict};

struct Booking<'a> {
    cluster: &'a str,
    processors: u64,
    start: u64,
    end: u64,
}

fn bookings(record: &Record) -> Vec<Booking<'_>> {
    let rows = record.event.get("bookings").and_then(Value::as_array);
    let booking = |row: &'_ Value| -> Option<(u64, u64, u64)> {
        let number = |field| row.get(field).and_then(Value::as_u64);
        Some((number("processors")?, number("start_us")?, number("end_us")?))
    };
    let rows = rows.into_iter().flatten().filter_map(|row| {
        let (processors, start, end) = booking(row)?;
        Some(Booking { cluster: row.get("cluster")?.as_str()?, processors, start, end })
    });
    rows.collect()
}

pub(crate) fn judge(records: &[Record], verdict: &mut Verdict) {
    let mut agreed: BTreeMap<u64, &Record> = BTreeMap::new();
    for record in records {
        match record.kind() {
            "reservation_agreed" => {
                verdict.count("agreed reservations", 1);
                let id = record.number("reservation").unwrap_or_default();
                if let Some(before) = agreed.insert(id, record)
                    && before.event.get("bookings") != record.event.get("bookings")
                {
                    let what = format!("the bookings of reservation {id} changed");
                    verdict.fault(Rule::BookingNotKept, what, &[before, record]);
                }
                judge_capacity(record, &agreed, verdict);
            }
            "reservation_ended" | "reservation_refused" => {
                verdict.count("ended and refused reservations", 1);
                if let Some(id) = record.number("reservation") {
                    agreed.remove(&id);
                }
                if record.text("why").is_empty() {
                    let what = "a reservation ended without a reason".to_owned();
                    verdict.fault(Rule::BookingNotKept, what, &[record]);
                }
            }
            _ => {}
        }
    }
}

/// Compares all agreed bookings with the capacity, at the start of each booking of one reservation
/// or within it.
fn judge_capacity(new: &Record, agreed: &BTreeMap<u64, &Record>, verdict: &mut Verdict) {
    let all: Vec<Booking<'_>> = agreed.values().flat_map(|record| bookings(record)).collect();
    for booking in bookings(new) {
        let capacity = new.event.get("capacity").and_then(|all| all.get(booking.cluster));
        let Some(capacity) = capacity.and_then(Value::as_u64) else { continue };
        let here = || all.iter().filter(|other| other.cluster == booking.cluster);
        let starts = here().map(|other| other.start);
        let within = starts.filter(|start| (booking.start..booking.end).contains(start));
        for time in within {
            let at = here().filter(|other| other.start <= time && time < other.end);
            let reserved: u64 = at.map(|other| other.processors).sum();
            if reserved > capacity {
                let what = format!(
                    "{reserved} of {capacity} processors of {} are reserved at {time}",
                    booking.cluster
                );
                let records: Vec<&Record> = agreed.values().copied().collect();
                verdict.fault(Rule::Overbooked, what, &records);
                return;
            }
        }
    }
}
