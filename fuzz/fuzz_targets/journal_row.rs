//! Runs `counterfoil::fuzzing::journal_row`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    counterfoil::fuzzing::journal_row(bytes);
});
