//! Faults that the test suite plants: crashes at named points, and known bugs that its checks must
//! find. Without the cargo feature `failpoints` there are none and all of this is nothing.

/// Whether a fault is planted under this name.
pub fn planted(name: &'static str) -> bool {
    fail::fail_point!(name, |_| true);
    let _ = name;
    false
}

/// Ends the process at once, as kill -9 would, if a crash is planted here.
pub fn crash_point(name: &'static str) {
    if planted(name) {
        std::process::abort();
    }
}
