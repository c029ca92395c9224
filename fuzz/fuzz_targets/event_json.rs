//! Runs `counterfoil::fuzzing::event_json`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    counterfoil::fuzzing::event_json(bytes);
});
