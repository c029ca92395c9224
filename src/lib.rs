//! Counterfoil: counts usage events exactly once in effect and keeps exact totals.
//! Modules in the order of dependency; each knows only those above it.

pub mod rules;
