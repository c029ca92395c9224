//! Rows of `pushes` and of their history: how they are written and read.
//!
//! Invariant: what was planned of a push is written once, by `insert_pushes`, and never changed. A
//! change of a push adds a row to its history in the same transaction, and returns the line that is
//! logged after the commit. A push that is written as waiting is counted with it (`waiting`).
//!
//! A crash leaves a push with its history or neither of the two; at worst a line of the log is
//! missing.

use super::epochs::secret_now;
use super::push_history::decode_window;
use super::waiting::count_waiting;
use super::{Done, Row, Session, Value, values};
use crate::rules::push::{NewPush, Push, StoredPush};
use crate::rules::quantity::Quantity;
use crate::rules::restore::Reading;
use crate::rules::settlement::Change;
use crate::rules::submission::PushState;
use crate::rules::timestamp::Timestamp;
use crate::store::push::{TransitionLine, key_of};
use crate::store::{Error, Result};
use std::collections::BTreeSet;

impl dyn Session + '_ {
    /// Those of the pushes that exist, in the order of their numbers. SQLite takes the tables of a
    /// `CROSS JOIN` in the order in which they stand.
    pub fn read_pushes(&self, numbers: &[u64]) -> Done<Vec<StoredPush>> {
        let sql = "-- read_pushes
            WITH given (number) AS (VALUES ($::int8), ...)
            SELECT push_no, tenant, pushes.tenant_no, tenants.customer AS tenant_customer,
                pushes.meter_no, slug, window_start, window_end, revision, shadow, mode, quantity,
                value, key, stamped_at, subscriptions, event_id, state, class, detail,
                pushes.customer, request, attempts, request_keys, first_attempt_at, due_at, fence,
                leased_until, pushes.created_at, state_at, unreadable_since, looked_total, looked_at
            FROM given CROSS JOIN pushes CROSS JOIN tenants CROSS JOIN meters
            WHERE push_no = number AND tenants.tenant_no = pushes.tenant_no
                AND meters.meter_no = pushes.meter_no
            ORDER BY push_no";
        self.read_batch(sql, sort_numbers(numbers), decode_push)
    }

    /// As [`Self::read_pushes`]; each is locked until the transaction ends, in that order.
    pub fn lock_pushes(&self, numbers: &[u64]) -> Done<Vec<StoredPush>> {
        let sql = "-- lock_pushes
            WITH given (number) AS (VALUES ($::int8), ...)
            SELECT push_no FROM given JOIN pushes ON push_no = number
            ORDER BY push_no FOR UPDATE OF pushes";
        self.read_batch(sql, sort_numbers(numbers), |_| Ok(()))?;
        self.read_pushes(numbers)
    }

    /// Writes pushes, due at once, in their order, under keys that are made with the store's
    /// secret. What is returned is logged after the commit.
    pub fn insert_pushes(
        &self,
        secret: &[u8; 32],
        pushes: &[NewPush],
        at: Timestamp,
    ) -> Done<Vec<TransitionLine>> {
        if pushes.is_empty() {
            return Ok(Vec::new());
        }
        let secret = secret_now(self, secret)?;
        let sql = "-- insert_pushes
            INSERT INTO pushes (tenant_no, meter_no, window_start, window_end, revision, shadow,
                mode, quantity, value, key, stamped_at, subscriptions, event_id, state, class,
                detail, customer, due_at, created_at, state_at, attempts, request_keys, fence)
            VALUES ($, $, $, $, $, $, $, $, $, $, $, $, $, $, $, $, $, $, $, $, 0, 0, 0), ...
            RETURNING push_no, key";
        let rows = pushes.iter().map(|push| new_row(push, key_of(&secret, push), at));
        let written: Vec<(u64, String)> = self.read_batch(sql, rows, |row| {
            Ok((row.get("pushes.push_no")?, row.get("pushes.key")?))
        })?;
        let mut lines = Vec::with_capacity(pushes.len());
        for (push, (number, key)) in pushes.iter().zip(written) {
            if key != key_of(&secret, push) {
                let what = "pushes were not written in their order".into();
                return Err(Error::Internal { what }.into());
            }
            lines.push(TransitionLine::of_new(number, key, push));
        }
        self.record_lines(&lines, at)?;
        let waiting = pushes.iter().filter(|push| push.state == PushState::Waiting && !push.shadow);
        count_waiting(
            self,
            waiting.map(|push| ((push.tenant_no, push.meter), push.planned.quantity)),
        )?;
        Ok(lines)
    }

    /// Changes pushes as planned, and ends their leases. What is returned is logged after the
    /// commit.
    pub fn change_pushes(&self, changes: &[Change], at: Timestamp) -> Done<Vec<TransitionLine>> {
        let sql = "-- change_pushes
            WITH given (number, state, class, detail, due_at, request_keys, state_at,
                unreadable_since, looked_total, looked_at) AS (
                VALUES ($::int8, $::text, $::text, $::text, $::timestamptz, $::int4,
                    $::timestamptz, $::timestamptz, $::numeric, $::timestamptz), ...
            )
            UPDATE pushes SET state = given.state, class = given.class, detail = given.detail,
                due_at = given.due_at, request_keys = given.request_keys,
                state_at = given.state_at, unreadable_since = given.unreadable_since,
                looked_total = given.looked_total, looked_at = given.looked_at,
                leased_until = NULL
            FROM given WHERE push_no = number";
        let rows = changes.iter().map(|change| {
            values![
                change.push,
                change.state,
                change.class,
                change.detail,
                change.due_at,
                change.request_keys,
                change.state_at,
                change.unreadable_since,
                change.looked.map(|looked| looked.total),
                change.looked.map(|looked| looked.at),
            ]
            .to_vec()
        });
        self.run_batch(sql, rows)?;
        let lines: Vec<TransitionLine> = changes.iter().map(TransitionLine::of_change).collect();
        self.record_lines(&lines, at)?;
        Ok(lines)
    }

    /// Adds rows to the history of pushes, in their order.
    pub fn record_lines(&self, lines: &[TransitionLine], at: Timestamp) -> Done<()> {
        let sql = "-- record_lines
            INSERT INTO push_transitions (push_no, at, state, class, attempt, request_id, detail)
            VALUES ($, $, $, $, $, $, $), ...";
        let rows = lines.iter().map(|line| {
            let TransitionLine { push, state, class, attempt, request_id, detail, .. } = line;
            values![push, at, state, class, attempt, request_id, detail].to_vec()
        });
        self.run_batch(sql, rows)?;
        Ok(())
    }
}

/// Each once, in their order. A number that no column can hold names no push.
fn sort_numbers(numbers: &[u64]) -> impl Iterator<Item = Vec<Value>> {
    let numbers: BTreeSet<i64> =
        numbers.iter().filter_map(|number| i64::try_from(*number).ok()).collect();
    numbers.into_iter().map(|number| values![number].to_vec())
}

fn new_row(push: &NewPush, key: String, at: Timestamp) -> Vec<Value> {
    values![
        push.tenant_no,
        push.meter,
        push.window.start,
        push.window.end,
        push.planned.revision,
        push.shadow,
        push.mode,
        push.planned.quantity,
        push.planned.value,
        key,
        push.stamped_at,
        push.subscriptions,
        push.event,
        push.state,
        push.class,
        push.detail,
        push.customer,
        at,
        at,
        at,
    ]
    .to_vec()
}

fn decode_push(row: &Row) -> Result<StoredPush> {
    let push = Push {
        number: row.get("pushes.push_no")?,
        tenant: row.get("tenants.tenant")?,
        meter: row.get("pushes.meter_no")?,
        window: decode_window(row)?,
        revision: row.get("pushes.revision")?,
        shadow: row.get("pushes.shadow")?,
        mode: row.get("pushes.mode")?,
        quantity: row.get("pushes.quantity")?,
        value: row.get("pushes.value")?,
        key: row.get("pushes.key")?,
        stamped_at: row.get("pushes.stamped_at")?,
        subscriptions: row.get("pushes.subscriptions")?,
        event: row.get("pushes.event_id")?,
        state: row.get("pushes.state")?,
        class: row.get("pushes.class")?,
        detail: row.get("pushes.detail")?,
        customer: row.get("pushes.customer")?,
        attempts: row.get("pushes.attempts")?,
        first_attempt_at: row.get("pushes.first_attempt_at")?,
        due_at: row.get("pushes.due_at")?,
        created_at: row.get("pushes.created_at")?,
        state_at: row.get("pushes.state_at")?,
    };
    let looked: (Option<Quantity>, Option<Timestamp>) =
        (row.get("pushes.looked_total")?, row.get("pushes.looked_at")?);
    Ok(StoredPush {
        push,
        tenant_no: row.get("pushes.tenant_no")?,
        slug: row.get("meters.slug")?,
        tenant_customer: row.get("tenants.tenant_customer")?,
        fence: row.get("pushes.fence")?,
        leased_until: row.get("pushes.leased_until")?,
        request: row.get("pushes.request")?,
        request_keys: row.get("pushes.request_keys")?,
        unreadable_since: row.get("pushes.unreadable_since")?,
        looked: looked.0.zip(looked.1).map(|(total, at)| Reading { total, at }),
    })
}
