//! Days and windows of a range, as far as a meter is billed in it and a pass has read them.

use super::Work;
use super::snapshot::Readings;
use crate::rules::timestamp::{MICROS_PER_DAY, Timestamp};
use crate::rules::window::Window;

/// The part of a range from which on the meter is billed.
pub fn billed_part(work: &Work, range: Window) -> Window {
    let first = work.billing().window_around(work.start(), work.meter.spec.bucket);
    Window { start: range.start.max(first.start), end: range.end }
}

/// Whether billing began within the day, after its start.
pub fn begins_in(work: &Work, day: Window) -> bool {
    let start = work.start();
    day.start < start && start < day.end
}

/// The windows of a range that are billed, oldest first.
pub fn windows_of(work: &Work, range: Window) -> Vec<Window> {
    let range = billed_part(work, range);
    let around = |at: Timestamp| work.billing().window_around(at, work.meter.spec.bucket);
    let mut windows = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let window = around(at);
        at = window.end;
        windows.push(window);
    }
    windows
}

/// The windows of a range that this pass has read of the tenant's customer.
pub fn read_windows(
    readings: &Readings,
    work: &Work,
    range: Window,
) -> impl Iterator<Item = Window> {
    let windows = windows_of(work, range).into_iter();
    windows.filter(|window| readings.has_read(work, &work.pair.customer, *window))
}

/// Whether this pass has read a window or a day that a finding names.
pub fn is_read(readings: &Readings, work: &Work, window: Window) -> bool {
    if begins_in(work, window) {
        let read = read_windows(readings, work, window).count();
        return read == windows_of(work, window).len();
    }
    readings.has_read(work, &work.pair.customer, window)
}

pub fn days_of(range: Window) -> Vec<Window> {
    let mut start = range.start.micros().div_euclid(MICROS_PER_DAY) * MICROS_PER_DAY;
    let mut days = Vec::new();
    while start < range.end.micros() {
        let end = start + MICROS_PER_DAY;
        days.push(Window {
            start: Timestamp::from_micros(start),
            end: Timestamp::from_micros(end),
        });
        start = end;
    }
    days
}

pub fn window_length(work: &Work, range: Window) -> i64 {
    work.billing().window_around(range.start, work.meter.spec.bucket).micros()
}
