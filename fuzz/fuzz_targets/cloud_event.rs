//! Runs `counterfoil::fuzzing::cloud_event`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    counterfoil::fuzzing::cloud_event(bytes);
});
