//! Work that goes on beside requests.

pub mod ingest;
