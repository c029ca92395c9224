//! Charts as SVG, drawn without a library.
//!
//! Invariant: numbers in text are exact; only places of pixels are computed, in whole numbers.
//! Whatever the values are, zero is on every axis and every mark lies inside its chart.

use super::super::outcome::signed;
use super::figures::{Apart, Bin};
use super::markup::{escape, verdict_label};
use crate::cli::table::grouped;
use crate::rules::drift::Verdict;
use crate::rules::quantity::Quantity;
use std::fmt::Write;

const WIDTH: i128 = 760;
/// Room for a line of text, and for a character of it.
const LINE: i128 = 26;
const CHARACTER: i128 = 7;
const RIGHT: i128 = 12;
/// Marks of an axis are at least this far apart.
const MARK_PIXELS: i128 = 34;

/// Values on one side and pixels on the other.
struct Axis {
    low: i128,
    high: i128,
    /// The distance of marks.
    step: i128,
    from: i128,
    to: i128,
}

impl Axis {
    /// An axis that holds zero and all values, from one pixel to another.
    fn new(values: impl Iterator<Item = Quantity>, from: i128, to: i128) -> Self {
        let (mut low, mut high) = (0, 0);
        for value in values {
            low = low.min(value.units());
            high = high.max(value.units());
        }
        let high = high.max(low.saturating_add(1));
        let marks_max = ((to - from).abs() / MARK_PIXELS).max(2);
        Self { low, high, step: round_step(high.saturating_sub(low), marks_max), from, to }
    }

    /// Ends the axis at marks, so that the highest bar has a line above it.
    fn rounded(mut self) -> Self {
        let step = self.step;
        let outwards = |end: i128| end.checked_add(end.signum() * (step - 1));
        let whole = |end: i128| outwards(end).map_or(end, |end| end / step * step);
        (self.low, self.high) = (whole(self.low), whole(self.high));
        self
    }

    fn at(&self, value: Quantity) -> i128 {
        let span = self.high.saturating_sub(self.low);
        // One part in ten million is less than a pixel, and cannot overflow.
        let unit = (span / 10_000_000).max(1);
        let inside = value.units().clamp(self.low, self.high).saturating_sub(self.low) / unit;
        self.from + (self.to - self.from) * inside / (span / unit).max(1)
    }

    fn zero(&self) -> i128 {
        self.at(Quantity::ZERO)
    }

    fn marks(&self) -> Vec<Quantity> {
        let (first, last) = (self.low / self.step, self.high / self.step);
        (first..=last).map(|place| Quantity::from_units(place * self.step)).collect()
    }
}

/// 1, 2 or 5 times a power of ten, so that the span has fewer than `marks_max` of them.
fn round_step(span: i128, marks_max: i128) -> i128 {
    let mut power: i128 = 1;
    loop {
        for step in [1, 2, 5].map(|digit| power.saturating_mul(digit)) {
            if span / step < marks_max {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// The start and the length of a bar between two places; what is not zero is never invisible.
///
/// On an axis that runs upwards, more is less of a pixel; the value only says whether it is zero.
fn bar(zero: i128, end: i128, value: Quantity) -> (i128, i128) {
    let length = (end - zero).abs().max(if value == Quantity::ZERO { 0 } else { 2 });
    (if end < zero { zero - length } else { zero }, length)
}

fn open(height: i128, label: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(label))
}

/// Windows by verdict, one bar each.
pub fn verdicts(count: impl Fn(Verdict) -> u64) -> String {
    let left = 176;
    let lines = i128::try_from(Verdict::ALL.len()).unwrap_or(0);
    let height = LINE * lines + 4;
    let exact = |verdict| Quantity::from_units(i128::from(count(verdict)));
    let axis = Axis::new(Verdict::ALL.into_iter().map(exact), left, WIDTH - 110);
    let mut svg = open(height, "windows by verdict");
    for (verdict, line) in Verdict::ALL.into_iter().zip(0..) {
        let (y, count, name) = (line * LINE, count(verdict), verdict.name());
        let (x, length) = bar(left, axis.at(exact(verdict)), exact(verdict));
        let (label, shown) = (verdict_label(verdict), grouped(count));
        let _ = write!(
            svg,
            "<g class=\"hit\"><title>{label}: {shown} windows</title>\
             <rect class=\"room\" x=\"0\" y=\"{y}\" width=\"{WIDTH}\" height=\"{LINE}\"/>\
             <text class=\"name\" x=\"{}\" y=\"{}\">{label}</text>\
             <rect class=\"v-{name}\" x=\"{x}\" y=\"{}\" width=\"{length}\" height=\"16\" rx=\"2\"/>\
             <text class=\"value\" x=\"{}\" y=\"{}\">{shown}</text></g>",
            left - 12,
            y + 18,
            y + 5,
            left + length + 8,
            y + 18
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Where the parts of a chart by day are.
struct Frame {
    left: i128,
    /// Pixels for a bin, a thousand times as many: bins need not end at pixels.
    bin_milli: i128,
}

impl Frame {
    fn new(bins: usize, marks: impl Iterator<Item = Quantity>) -> Self {
        let widest = marks.map(|mark| signed(mark).chars().count()).max().unwrap_or(1);
        let left = (length(widest) * CHARACTER + 14).max(48);
        let room = WIDTH - RIGHT - left;
        // A few days do not become walls.
        let bin_milli = (room * 1_000 / length(bins).max(1)).min(120_000);
        Self { left, bin_milli }
    }

    fn x(&self, bin: usize) -> i128 {
        self.left + length(bin) * self.bin_milli / 1_000
    }

    fn grid(&self, svg: &mut String, axis: &Axis, sign: fn(Quantity) -> String) {
        for mark in axis.marks() {
            let y = axis.at(mark);
            let class = if mark == Quantity::ZERO { "zero" } else { "grid" };
            let _ = write!(
                svg,
                "<line class=\"{class}\" x1=\"{}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{}\">{}</text>",
                self.left,
                WIDTH - RIGHT,
                self.left - 8,
                y + 4,
                sign(mark)
            );
        }
    }
}

fn length(count: usize) -> i128 {
    i128::try_from(count).expect("a count fits into 128 bits")
}

/// Ledger and provider side by side, day by day; and below, if there are any, the differences: what
/// the provider has too much upwards, what it lacks downwards. They have a scale of their own,
/// because beside the totals they would be a hair.
pub fn days(meter: &str, bins: &[Bin]) -> String {
    let totals = bins.iter().flat_map(|bin| [bin.total.ledger, bin.total.provider]);
    let above = Axis::new(totals, 190, 14).rounded();
    let differs = bins.iter().any(|bin| !bin.total.apart.is_zero());
    let aparts = bins.iter().flat_map(|bin| [bin.total.apart.less, bin.total.apart.more]);
    let below = differs.then(|| Axis::new(aparts, 318, 240).rounded());
    let axes = || [Some(&above), below.as_ref()].into_iter().flatten();
    let bottom = axes().map(|axis| axis.from).max().unwrap_or(0);
    let frame = Frame::new(bins.len(), axes().flat_map(Axis::marks));
    let mut svg = open(bottom + 28, &format!("{meter}: ledger, provider and differences by day"));
    frame.grid(&mut svg, &above, grouped);
    if let Some(below) = &below {
        frame.grid(&mut svg, below, signed);
        let (x, y) = (frame.left, below.to - 12);
        let _ = write!(
            svg,
            "<text class=\"caption\" x=\"{x}\" y=\"{y}\">Difference, without what is on its way</text>"
        );
    }
    for (bin, place) in bins.iter().zip(0..) {
        let _ = write!(svg, "<g class=\"hit\"><title>{}</title>", day_title(bin));
        let (x, next) = (frame.x(place), frame.x(place + 1));
        rect(&mut svg, "room", (x, above.to), (next - x, bottom - above.to));
        day_bars(&mut svg, (x, next), bin, &above, below.as_ref());
        svg.push_str("</g>");
    }
    day_names(&mut svg, &frame, bins, bottom + 18);
    svg.push_str("</svg>");
    svg
}

/// The bars of one bin, between two places.
fn day_bars(
    svg: &mut String,
    (x, next): (i128, i128),
    bin: &Bin,
    above: &Axis,
    below: Option<&Axis>,
) {
    let gap = ((next - x) / 6).max(1);
    let width = ((next - x - 2 * gap) / 2).max(1);
    let sides = [("ledger", bin.total.ledger), ("provider", bin.total.provider)];
    for ((class, value), side) in sides.into_iter().zip(0..) {
        let (y, height) = bar(above.zero(), above.at(value), value);
        rect(svg, class, (x + gap + side * width, y), (width, height));
    }
    if bin.drifts {
        let middle = x + gap + width;
        let _ = write!(svg, "<circle class=\"drifts\" cx=\"{middle}\" cy=\"5\" r=\"3\"/>");
    }
    if let Some(below) = below {
        for (class, value) in [("less", bin.total.apart.less), ("more", bin.total.apart.more)] {
            let (y, height) = bar(below.zero(), below.at(value), value);
            rect(svg, class, (x + gap, y), (2 * width, height));
        }
    }
}

/// Tenants with the largest differences, one line each.
pub fn tenants(meter: &str, tenants: &[(&str, Apart)]) -> String {
    const NAME_CHARACTERS: usize = 26;
    let left = length(NAME_CHARACTERS) * CHARACTER + 8;
    let height = LINE * length(tenants.len()) + 4;
    let label = |apart: &Apart| -> String {
        let sides = [apart.less, apart.more].into_iter().filter(|side| *side != Quantity::ZERO);
        sides.map(signed).collect::<Vec<_>>().join(" and ")
    };
    let widest = tenants.iter().map(|(_, apart)| label(apart).chars().count()).max().unwrap_or(0);
    let end = (WIDTH - RIGHT - length(widest) * CHARACTER - 12).max(left + 120);
    let values = tenants.iter().flat_map(|(_, apart)| [apart.less, apart.more]);
    let axis = Axis::new(values, left, end);
    let mut svg = open(height, &format!("{meter}: largest differences by tenant"));
    for ((tenant, apart), line) in tenants.iter().zip(0..) {
        let y = line * LINE;
        let _ = write!(svg, "<g class=\"hit\"><title>{}: {}</title>", escape(tenant), label(apart));
        rect(&mut svg, "room", (0, y), (WIDTH, LINE));
        let _ = write!(
            svg,
            "<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>",
            left - 12,
            y + 18,
            escape(&shortened(tenant, NAME_CHARACTERS))
        );
        for (class, value) in [("less", apart.less), ("more", apart.more)] {
            let (x, width) = bar(axis.zero(), axis.at(value), value);
            rect(&mut svg, class, (x, y + 5), (width, 16));
        }
        let _ = write!(
            svg,
            "<text class=\"value\" x=\"{}\" y=\"{}\">{}</text></g>",
            axis.at(apart.more).max(axis.zero()) + 8,
            y + 18,
            label(apart)
        );
    }
    let _ = write!(
        svg,
        "<line class=\"zero\" x1=\"{0}\" x2=\"{0}\" y1=\"0\" y2=\"{height}\"/></svg>",
        axis.zero()
    );
    svg
}

fn day_title(bin: &Bin) -> String {
    let days = if bin.first == bin.last {
        bin.first.to_string()
    } else {
        format!("{} to {}", bin.first, bin.last)
    };
    let total = &bin.total;
    let apart = match (total.apart.less == Quantity::ZERO, total.apart.more == Quantity::ZERO) {
        (true, true) => "no difference".to_owned(),
        (false, true) => format!("difference {}", signed(total.apart.less)),
        (true, false) => format!("difference {}", signed(total.apart.more)),
        (false, false) => {
            format!("differences {} and {}", signed(total.apart.less), signed(total.apart.more))
        }
    };
    let waiting = match total.waiting {
        Quantity::ZERO => String::new(),
        waiting => format!(", on its way {}", signed(waiting)),
    };
    format!(
        "{days}: ledger {}, pushed {}, provider {}, {apart}{waiting}",
        grouped(total.ledger),
        grouped(total.pushed),
        grouped(total.provider)
    )
}

/// Names under the bins, as many as have room.
fn day_names(svg: &mut String, frame: &Frame, bins: &[Bin], y: i128) {
    const ROOM: i128 = 56_000;
    let every = usize::try_from((ROOM + frame.bin_milli - 1) / frame.bin_milli.max(1)).unwrap_or(1);
    for (place, bin) in bins.iter().enumerate().step_by(every.max(1)) {
        let middle = i128::midpoint(frame.x(place), frame.x(place + 1));
        let name = bin.first.strftime("%-d %b");
        let _ = write!(svg, "<text class=\"day\" x=\"{middle}\" y=\"{y}\">{name}</text>");
    }
}

fn rect(svg: &mut String, class: &str, (x, y): (i128, i128), (width, height): (i128, i128)) {
    let _ = write!(
        svg,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
    );
}

fn shortened(name: &str, characters: usize) -> String {
    if name.chars().count() <= characters {
        return name.to_owned();
    }
    let kept: String = name.chars().take(characters - 1).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        Quantity::parse_stored(text).unwrap()
    }

    #[test]
    fn marks_are_round_and_few() {
        let check = |values: &[&str], expected: &[&str]| {
            let axis = Axis::new(values.iter().map(|v| quantity(v)), 180, 0).rounded();
            let marks: Vec<String> = axis.marks().iter().map(Quantity::to_string).collect();
            assert_eq!(marks, expected, "{values:?}");
            for value in values {
                assert!((0..=180).contains(&axis.at(quantity(value))), "{values:?}");
            }
        };
        check(&["7"], &["0", "2", "4", "6", "8"]);
        check(&["120.5", "118"], &["0", "50", "100", "150"]);
        check(&["-2.5", "0"], &["-3", "-2", "-1", "0"]);
        check(&["0.000000000003"], &["0", "0.000000000001", "0.000000000002", "0.000000000003"]);
        check(&["-40", "100"], &["-50", "0", "50", "100"]);
    }

    #[test]
    fn the_largest_numbers_stay_inside() {
        let largest = Quantity::from_units(i128::MAX);
        let smallest = Quantity::from_units(i128::MIN + 1);
        for values in [vec![largest], vec![smallest], vec![smallest, largest], vec![]] {
            let axis = Axis::new(values.iter().copied(), 10, 110).rounded();
            for value in [smallest, Quantity::ZERO, largest] {
                assert!((10..=110).contains(&axis.at(value)), "{values:?}");
            }
            assert!(axis.marks().len() < 12);
        }
    }

    #[test]
    fn what_is_not_zero_is_seen() {
        assert_eq!(bar(100, 100, Quantity::ZERO), (100, 0));
        assert_eq!(bar(100, 100, Quantity::ONE), (100, 2));
        assert_eq!(bar(100, 40, Quantity::ONE), (40, 60));
    }
}
