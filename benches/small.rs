//! The small things that every cycle does, timed by criterion: `cargo bench`. What a whole server
//! does is measured by `countersign bench`.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

use countersign::runner::prompt::{self, Told};
use countersign::session::record::{Body, Record};
use countersign::session::state::Touched;
use countersign::session::{Session, codec, json};
use criterion::{Criterion, criterion_group, criterion_main};
use serde_json::{Value, json};

/// The records of a session with calls, answers and a pause, as they are stored.
const LOG: &str = include_str!("../tests/golden/v1/log.jsonl");

fn records() -> Vec<Record> {
    let read = |line: &str| codec::decode_record(line.as_bytes()).expect("the log is readable");
    LOG.lines().map(read).collect()
}

fn fold(records: &[Record]) -> Session {
    let mut session = Session::begin(&records[0]).expect("the first record begins a session");
    let mut touched = Touched::default();
    records[1..].iter().for_each(|record| session.apply(record, &mut touched));
    session
}

fn texts(bench: &mut Criterion) {
    let args = json!({
        "purpose": "conference travel", "amount": 200.50, "currency": "EUR",
        "receipts": (0..20).map(|n| json!({"id": n, "total": 10 * n})).collect::<Vec<_>>(),
    });
    let Value::Object(args) = args else { unreachable!("it was written as an object") };
    bench.bench_function("digest of arguments", |b| {
        b.iter(|| json::args_digest(black_box("ask_for_approval"), black_box(&args)));
    });
    let records = records();
    bench.bench_function("store form of a log's records", |b| {
        b.iter(|| black_box(&records).iter().map(codec::encode_record).collect::<Vec<_>>());
    });
    bench.bench_function("a log's records from their stored form", |b| {
        b.iter(|| {
            LOG.lines().map(|line| codec::decode_record(line.as_bytes())).collect::<Vec<_>>()
        });
    });
}

fn folds(bench: &mut Criterion) {
    let records = records();
    bench.bench_function("fold of a log", |b| b.iter(|| fold(black_box(&records))));
    let session = fold(&records);
    bench.bench_function("a snapshot and back", |b| {
        b.iter(|| codec::decode_snapshot(&codec::encode_snapshot(black_box(&session))));
    });
}

fn prompts(bench: &mut Criterion) {
    let told = |(at, record): (usize, &Record)| {
        let seen = match &record.body {
            Body::Replied { seen, event, .. } if event.error_code.is_empty() => Some(*seen),
            _ => None,
        };
        let event = Arc::new(record.body.event()?.clone());
        Some(Told { event, position: at as u64 + 1, seen })
    };
    let records = records();
    let history: Vec<Told> = records.iter().enumerate().filter_map(told).collect();
    let reply = records.iter().find_map(|record| match &record.body {
        Body::Replied { invocation, frame, .. } => Some((invocation, frame)),
        _ => None,
    });
    let (invocation, frame) = reply.expect("a model speaks in the log");
    let to = prompt::Frame { invocation, frame };
    bench.bench_function("prompt of a log", |b| {
        b.iter(|| prompt::build(black_box(&history), to, &BTreeSet::new()));
    });
}

criterion_group!(small, texts, folds, prompts);
criterion_main!(small);
