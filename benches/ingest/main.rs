//! The ingest benchmark.

fn main() {}
