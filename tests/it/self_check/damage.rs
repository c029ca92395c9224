//! Damages what a store keeps, and mends it again.

use crate::world::Ground;

/// Rows as an accident would leave them, on each store, and what undoes it.
pub struct Damage {
    sqlite: (&'static str, &'static str),
    postgres: (&'static str, &'static str),
}

/// A total counts something twice (SQLite), or lost an event (PostgreSQL).
pub const TOTAL: Damage = Damage {
    sqlite: (
        "INSERT INTO total_blocks (run_no, tenant_no, meter_no, bucket_start, last_tenant_no, body)
             SELECT run_no, tenant_no, meter_no, bucket_start, last_tenant_no, body
             FROM total_blocks ORDER BY block_no LIMIT 1",
        "DELETE FROM total_blocks WHERE block_no = (SELECT max(block_no) FROM total_blocks)",
    ),
    postgres: (
        "UPDATE rollups SET count = count - 1, total = total - 1",
        "UPDATE rollups SET count = count + 1, total = total + 1",
    ),
};

/// A counter of an hour in which nothing was received (SQLite), or one that is off by one.
pub const COUNTER: Damage = Damage {
    sqlite: (
        "INSERT INTO counter_blocks (hour, block_no, body)
             SELECT hour + 7200000000, block_no, body FROM counter_blocks",
        "DELETE FROM counter_blocks WHERE hour = (SELECT max(hour) FROM counter_blocks)",
    ),
    postgres: (
        "UPDATE counters SET accepted = accepted + 1",
        "UPDATE counters SET accepted = accepted - 1",
    ),
};

/// A row of events that cannot be read.
pub const UNREADABLE: Damage = Damage {
    sqlite: (
        "UPDATE event_blocks SET body = CAST(body || x'00' AS BLOB) WHERE first_no = 1",
        "UPDATE event_blocks SET body = substr(body, 1, length(body) - 1) WHERE first_no = 1",
    ),
    postgres: (
        "UPDATE events SET id = '' WHERE id = 'e0-0'",
        "UPDATE events SET id = 'e0-0' WHERE id = ''",
    ),
};

impl Damage {
    pub async fn plant(&self, ground: &Ground) {
        ground.plant(self.of(ground).0).await;
    }

    pub async fn mend(&self, ground: &Ground) {
        ground.plant(self.of(ground).1).await;
    }

    fn of(&self, ground: &Ground) -> (&'static str, &'static str) {
        match ground {
            Ground::Directory(_) => self.sqlite,
            Ground::Database(_) => self.postgres,
        }
    }
}
