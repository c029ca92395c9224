//! What the demo shows while it runs: bars for people who watch, a line now and then for a log.

use super::Seen;
use crate::api::health::BillingHealth;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const PLAIN_LINE_EVERY: Duration = Duration::from_secs(2);

pub struct Display {
    bars: Option<Bars>,
    last_line: Mutex<Instant>,
}

struct Bars {
    all: MultiProgress,
    sent: ProgressBar,
    acknowledged: ProgressBar,
}

/// The bar of the last phase, while pushes settle.
pub struct SettlingBar {
    bar: ProgressBar,
    /// The most pushes that were open at one time.
    open_max: u64,
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid")
}

impl Display {
    pub fn new(deliveries: u64) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let sent = ProgressBar::new(deliveries)
                .with_style(style("sent         {bar:30} {human_pos} {msg}"));
            let acknowledged = ProgressBar::new(deliveries)
                .with_style(style("acknowledged {bar:30} {human_pos} {per_sec} {msg}"));
            let (sent, acknowledged) = (all.add(sent), all.add(acknowledged));
            Bars { all, sent, acknowledged }
        });
        Self { bars, last_line: Mutex::new(Instant::now()) }
    }

    pub fn say(&self, text: &str) {
        match &self.bars {
            Some(bars) => drop(bars.all.println(text)),
            None => eprintln!("{text}"),
        }
    }

    pub fn show(&self, seen: &Seen) {
        let Seen { sent, acknowledged, retries, kills, .. } = seen;
        let Seen { accepted, duplicates, conflicts, quarantined, rejected, .. } = seen;
        let outcomes = format!(
            "{accepted} accepted, {duplicates} duplicates, {conflicts} conflicts, {quarantined} \
             quarantined, {rejected} rejected"
        );
        if let Some(bars) = &self.bars {
            bars.sent.set_position(*sent);
            bars.sent.set_message(format!("{kills} kills, {retries} retries"));
            bars.acknowledged.set_position(*acknowledged);
            bars.acknowledged.set_message(outcomes);
        } else if self.line_is_due() {
            eprintln!("{sent} sent, {acknowledged} acknowledged: {outcomes}; {kills} kills");
        }
    }

    fn line_is_due(&self) -> bool {
        let mut last = self.last_line.lock().expect("no holder of the time panics");
        let due = last.elapsed() >= PLAIN_LINE_EVERY;
        if due {
            *last = Instant::now();
        }
        due
    }

    pub fn begin_settling(&self) -> SettlingBar {
        let bar = match &self.bars {
            Some(bars) => {
                // Their rates are of the traffic, which is over.
                bars.sent.finish();
                bars.acknowledged.finish();
                let bar = ProgressBar::new(0);
                bars.all.add(bar.with_style(style("settled      {bar:30} {msg}")))
            }
            None => ProgressBar::hidden(),
        };
        SettlingBar { bar, open_max: 0 }
    }

    pub fn show_settling(&self, settling: &mut SettlingBar, health: &BillingHealth) {
        let BillingHealth { observed, submitted, dead, .. } = health;
        let open = observed + submitted;
        settling.open_max = settling.open_max.max(open);
        settling.bar.set_length(settling.open_max);
        settling.bar.set_position(settling.open_max - open);
        let message = format!("pushes: {observed} observed, {submitted} submitted, {dead} dead");
        if self.bars.is_none() && self.line_is_due() {
            eprintln!("{message}");
        }
        settling.bar.set_message(message);
    }

    /// Takes the bars away and leaves what was said.
    pub fn finish(&self) {
        if let Some(bars) = &self.bars {
            let _ = bars.all.clear();
        }
    }
}
