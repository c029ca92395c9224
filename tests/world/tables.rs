//! The tables of a test's store, read and broken behind its back.

use super::ground::Ground;
use super::plant::open_directory;
use rusqlite::Connection;
use tokio_postgres::{Client, NoTls};

impl Ground {
    /// Another place of the same kind.
    pub async fn another(&self) -> Self {
        match self {
            Self::Directory(_) => Self::sqlite(),
            Self::Database(_) => Self::postgres().await.unwrap(),
        }
    }

    /// The setting that names the store.
    pub fn url(&self) -> String {
        match self {
            Self::Directory(_) => format!("sqlite:{}", self.data().display()),
            Self::Database(url) => url.to_string(),
        }
    }

    /// A connection to the embedded store.
    pub fn connect(&self) -> Connection {
        open_directory(&self.data())
    }

    /// The only value of a query, as text; the query must suit both stores.
    pub async fn read(&self, sql: &str) -> String {
        match self {
            Self::Directory(_) => self.connect().query_row(sql, [], |row| row.get(0)).unwrap(),
            Self::Database(url) => client(url).await.query_one(sql, &[]).await.unwrap().get(0),
        }
    }

    /// Makes the store refuse a write, such as `BEFORE INSERT ON pushes`, where the condition holds
    /// of the row `NEW`.
    pub async fn break_writes(&self, event: &str, condition: &str) {
        self.plant(&match self {
            Self::Directory(_) => format!(
                "CREATE TRIGGER broken {event} WHEN {condition}
                 BEGIN SELECT RAISE(ABORT, 'broken by the test'); END"
            ),
            Self::Database(_) => format!(
                "CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     IF {condition} THEN RAISE EXCEPTION 'broken by the test'; END IF;
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER broken {event} FOR EACH ROW EXECUTE FUNCTION broken()"
            ),
        })
        .await;
    }

    pub async fn repair_writes(&self) {
        let sql = match self {
            Self::Directory(_) => "DROP TRIGGER broken",
            Self::Database(_) => "DROP FUNCTION broken CASCADE",
        };
        self.plant(sql).await;
    }

    /// Every row of these tables, as text.
    pub async fn rows(&self, tables: &[&str]) -> Vec<String> {
        let mut rows = Vec::new();
        for table in tables {
            let found = match self {
                Self::Directory(_) => sqlite_rows(&self.connect(), table),
                Self::Database(url) => postgres_rows(&client(url).await, table).await,
            };
            rows.extend(found.into_iter().map(|row| format!("{table} {row}")));
        }
        rows
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn postgres_rows(client: &Client, table: &str) -> Vec<String> {
    let sql = format!("SELECT t::text FROM {table} t ORDER BY 1");
    client.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

fn sqlite_rows(connection: &Connection, table: &str) -> Vec<String> {
    let mut select = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let columns = select.column_count();
    let mut found = select.query([]).unwrap();
    let mut rows = Vec::new();
    while let Some(row) = found.next().unwrap() {
        let show = |place: usize| match row.get_ref(place).unwrap() {
            rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
            value => format!("{value:?}"),
        };
        let values: Vec<String> = (0..columns).map(show).collect();
        rows.push(format!("{values:?}"));
    }
    rows.sort();
    rows
}
