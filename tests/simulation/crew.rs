//! The worker processes of a world: two places, each with its own machine and clock. A worker that
//! has died is started again by the next order; one that has stalled is left alone until it
//! continues, and its order goes to the other.

use crate::orders::{Order, STALLED, Start};
use crate::world::{MINUTE, World};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Where a worker is made to die, besides the points of its store.
const CRASH_POINTS: [&str; 11] = [
    "cut.before",
    "cut.after",
    "cut.before_mark",
    "push.claimed",
    "push.before_send",
    "push.after_send",
    "push.before_settle",
    "push.summary_read",
    "confirm.before_settle",
    "reconcile.before_rows",
    "reconcile.before_close",
];

/// Where a worker is made to stall: mostly with a push in hand.
const STALL_POINTS: [&str; 7] = [
    "push.before_send",
    "push.before_send",
    "push.before_send",
    "push.claimed",
    "push.before_settle",
    "cut.before",
    "confirm.before_settle",
];

/// Longer than the leases of cuts, pushes and confirmations.
const LEASES_END: i64 = 3 * MINUTE;

#[derive(Default)]
pub struct Crew {
    places: [WorkPlace; 2],
    /// Whose turn it is.
    turn: usize,
    /// Whether workers are made to die.
    pub deadly: bool,
    /// Whether a worker is made to stall instead.
    pub stalling: bool,
    /// Whether both get orders, as it happens; the store must allow two at once.
    pub takes_turns: bool,
    /// See `Start`.
    pub reads_per_hour: u32,
}

#[derive(Default)]
struct WorkPlace {
    process: Option<Process>,
    /// By how much its clock is ahead of the true time.
    ahead: i64,
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The crash or stall that was planted.
    planned: Option<&'static str>,
    /// The true time when it last heard of it, and by how much its clock was ahead.
    clock: (i64, i64),
    stalled: bool,
}

enum Reply {
    Done(String),
    Stalled,
    Died,
}

impl World<'_> {
    /// Has the order done; where a worker dies or stalls, the next one does it again.
    pub fn order(&mut self, order: &Order) -> String {
        if self.crew.takes_turns && self.dice.percent(20) {
            self.switch_worker();
        }
        if self.has_stalled() && self.dice.percent(2) {
            self.continue_stalled();
        }
        loop {
            match self.ask(order) {
                Reply::Done(answer) => return answer,
                Reply::Stalled => {
                    *self.counters.crashes.entry("stalled".to_owned()).or_default() += 1;
                    if self.place.takes_two() {
                        self.crew.turn = 1 - self.crew.turn;
                        self.pass(LEASES_END);
                    } else {
                        // Nobody takes over; the provider may have forgotten its keys by then.
                        let minutes = *self.dice.pick(&[90, 1_500, 1_500, 1_700]);
                        self.pass(minutes * MINUTE);
                    }
                    // The other may have stalled before; one of them has to work.
                    self.continue_worker(self.crew.turn);
                }
                Reply::Died => {
                    let planned = self.bury();
                    *self.counters.crashes.entry(planned.to_owned()).or_default() += 1;
                    self.pass(LEASES_END);
                }
            }
        }
    }

    /// Asks the worker whose turn it is.
    fn ask(&mut self, order: &Order) -> Reply {
        let turn = self.crew.turn;
        if self.crew.places[turn].process.is_none() {
            let process = self.spawn();
            self.crew.places[turn].process = Some(process);
        }
        let clock = (self.now, self.crew.places[turn].ahead);
        let process = self.crew.places[turn].process.as_mut().unwrap();
        assert!(!process.stalled, "an order goes to a worker that has stalled");
        if process.clock != clock {
            process.clock = clock;
            match process.tell(
                &serde_json::to_string(&Order::Clock { at: clock.0, ahead: clock.1 }).unwrap(),
            ) {
                Reply::Done(_) => {}
                other => return other,
            }
        }
        process.tell(&serde_json::to_string(order).unwrap())
    }

    /// Lets time pass without an order.
    fn pass(&mut self, micros: i64) {
        self.now += micros;
        self.simulator.lock().unwrap().set_clock(stripe_sim::Timestamp::from_micros(self.now));
    }

    fn bury(&mut self) -> &'static str {
        let place = &mut self.crew.places[self.crew.turn];
        let mut process = place.process.take().unwrap();
        let status = process.child.wait().unwrap();
        let seed = self.seed;
        let Some(planned) = process.planned else {
            panic!("seed {seed}: the worker died without a planned crash: {status}");
        };
        planned
    }

    fn spawn(&mut self) -> Process {
        let mut points: Vec<String> =
            self.bug.iter().map(|bug| format!("bug.{bug}=return")).collect();
        let store_points = self.place.crash_points();
        let stalls = self.crew.stalling && !self.has_stalled() && self.dice.percent(80);
        let dies = !stalls && self.crew.deadly && self.dice.percent(75);
        let planned = (stalls || dies).then(|| {
            let all: Vec<&'static str> = match stalls {
                true => STALL_POINTS.to_vec(),
                false => CRASH_POINTS.iter().chain(store_points.iter()).copied().collect(),
            };
            *self.dice.pick(&all)
        });
        let mut stall = None;
        if let Some(point) = planned {
            let busy = store_points.contains(&point);
            let hits = self.dice.below(if busy { 25 } else { 4 });
            match stalls {
                true => stall = Some((point.to_owned(), hits)),
                false => points.push(format!("{point}={hits}*off->return")),
            }
        }
        let clock = (self.now, self.crew.places[self.crew.turn].ahead);
        let start = Start {
            store: self.place.store(),
            stripe: self.handle.url(),
            at: clock.0,
            ahead: clock.1,
            holder: format!("worker-{}", self.crew.turn),
            reads_per_hour: self.crew.reads_per_hour,
            stall,
        };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["worker", &serde_json::to_string(&start).unwrap()])
            .env("FAILPOINTS", points.join(";"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.place.log())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, input, output, planned, clock, stalled: false }
    }

    fn has_stalled(&self) -> bool {
        let stalled = |process: &Process| process.stalled;
        self.crew.places.iter().any(|place| place.process.as_ref().is_some_and(stalled))
    }

    /// Continues the worker that has stalled, if one has; its order ends like any other.
    pub fn continue_stalled(&mut self) {
        for turn in 0..2 {
            self.continue_worker(turn);
        }
    }

    fn continue_worker(&mut self, turn: usize) {
        let stalled = |process: &Process| process.stalled;
        if !self.crew.places[turn].process.as_ref().is_some_and(stalled) {
            return;
        }
        loop {
            let clock = (self.now, self.crew.places[turn].ahead);
            let process = self.crew.places[turn].process.as_mut().unwrap();
            process.stalled = false;
            process.clock = clock;
            match process.tell(&format!("{} {}", clock.0, clock.1)) {
                Reply::Done(_) => return,
                // It comes to the point again.
                Reply::Stalled => self.pass(LEASES_END),
                Reply::Died => {
                    let before = std::mem::replace(&mut self.crew.turn, turn);
                    self.bury();
                    self.crew.turn = before;
                    return;
                }
            }
        }
    }

    /// The other worker goes on. Only one of them can have an SQLite store open.
    pub fn switch_worker(&mut self) {
        if !self.place.takes_two() {
            self.stop_worker();
        }
        if !self.has_stalled() {
            self.crew.turn = 1 - self.crew.turn;
        }
    }

    /// Sets the clock of the worker whose turn it is; 0 sets it right.
    pub fn set_ahead(&mut self, micros: i64) {
        self.crew.places[self.crew.turn].ahead = micros;
    }

    /// Ends every worker in order.
    pub fn stop_worker(&mut self) {
        self.continue_stalled();
        for turn in 0..2 {
            if self.crew.places[turn].process.is_none() {
                continue;
            }
            self.crew.turn = turn;
            match self.ask(&Order::Exit) {
                Reply::Done(_) => {
                    let mut process = self.crew.places[turn].process.take().unwrap();
                    process.child.wait().unwrap();
                }
                Reply::Died | Reply::Stalled => self.kill("kill -9"),
            }
        }
    }

    /// Ends every worker at once.
    pub fn kill(&mut self, how: &str) {
        for place in &mut self.crew.places {
            if let Some(mut process) = place.process.take() {
                process.child.kill().unwrap();
                process.child.wait().unwrap();
                *self.counters.crashes.entry(how.to_owned()).or_default() += 1;
            }
        }
    }
}

impl Process {
    fn tell(&mut self, line: &str) -> Reply {
        if writeln!(self.input, "{line}").and_then(|()| self.input.flush()).is_err() {
            return Reply::Died;
        }
        let mut answer = String::new();
        match self.output.read_line(&mut answer) {
            Ok(_) if answer.trim_end() == STALLED => {
                self.stalled = true;
                Reply::Stalled
            }
            Ok(_) if answer.ends_with('\n') => Reply::Done(answer.trim_end().to_owned()),
            Ok(_) | Err(_) => Reply::Died,
        }
    }
}
