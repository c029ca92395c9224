//! Runs `counterfoil::fuzzing::stripe_signature`, which says what must hold.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    counterfoil::fuzzing::stripe_signature(bytes);
});
