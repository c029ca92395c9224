//! What `counterfoil check` shows while it reads: a bar on a terminal, a line now and then in a
//! log. It goes to standard error, so that the report alone is on standard output.

use crate::cli::table::grouped;
use crate::store::{CheckProgress, CheckStep};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const PLAIN_LINE_EVERY: Duration = Duration::from_secs(5);

pub struct CheckDisplay {
    bar: ProgressBar,
    /// When the last plain line was written; none where there is a bar, or nothing is shown.
    plain: Option<Mutex<Plain>>,
}

struct Plain {
    step: CheckStep,
    step_began: Instant,
    line_at: Instant,
}

impl CheckDisplay {
    pub fn new() -> Self {
        if !std::io::stderr().is_terminal() {
            let now = Instant::now();
            let plain = Plain { step: CheckStep::Keys, step_began: now, line_at: now };
            return Self { bar: ProgressBar::hidden(), plain: Some(Mutex::new(plain)) };
        }
        let template = "{msg:6} {bar:30} {human_pos} / {human_len} events, {per_sec}";
        let style = ProgressStyle::with_template(template).expect("the template is valid");
        Self { bar: ProgressBar::new(0).with_style(style), plain: None }
    }

    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), plain: None }
    }

    pub fn show(&self, progress: CheckProgress) {
        let CheckProgress { step, events, of } = progress;
        let name = match step {
            CheckStep::Keys => "keys",
            CheckStep::Totals => "totals",
        };
        if self.bar.message() != name {
            self.bar.set_message(name);
            self.bar.reset_eta();
        }
        self.bar.set_length(of);
        self.bar.set_position(events);
        let Some(plain) = &self.plain else { return };
        let mut plain = plain.lock().expect("no holder panics");
        let now = Instant::now();
        if plain.step != step {
            (plain.step, plain.step_began) = (step, now);
        }
        if now.duration_since(plain.line_at) < PLAIN_LINE_EVERY {
            return;
        }
        plain.line_at = now;
        let seconds = u64::max(now.duration_since(plain.step_began).as_secs(), 1);
        let (rate, events, of) = (grouped(events / seconds), grouped(events), grouped(of));
        eprintln!("checking {name}: {events} of {of} events, {rate} a second");
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
