//! Rows in the binary form of COPY: for each the number of fields, then length and bytes of each.
//!
//! Invariant: a table takes all of the rows or the transaction fails.

use super::failure::Failure;
use super::numeric::SqlQuantity;
use super::scalars::SqlTimestamp;
use crate::rules::quantity::Quantity;
use crate::rules::timestamp::Timestamp;
use crate::store::{Error, Result};
use bytes::{BufMut, Bytes, BytesMut};
use deadpool_postgres::ClientWrapper;
use futures_util::SinkExt;
use std::pin::pin;
use tokio_postgres::Statement;
use tokio_postgres::types::Type;

/// Rows of one table, on their way.
pub struct CopyRows {
    out: BytesMut,
    rows: usize,
}

impl CopyRows {
    /// With room for so many rows of so many bytes.
    pub fn with_capacity(rows: usize, row_bytes: usize) -> Self {
        let mut out = BytesMut::with_capacity(32 + rows * row_bytes);
        out.put_slice(b"PGCOPY\n\xff\r\n\0");
        // No flags, no header extension.
        out.put_i64(0);
        Self { out, rows: 0 }
    }

    /// Begins a row of so many fields.
    pub fn row(&mut self, fields: i16) {
        self.rows += 1;
        self.out.put_i16(fields);
    }

    pub fn null(&mut self) {
        self.out.put_i32(-1);
    }

    pub fn flag(&mut self, flag: bool) {
        self.out.put_i32(1);
        self.out.put_u8(u8::from(flag));
    }

    pub fn int2(&mut self, number: i16) {
        self.out.put_i32(2);
        self.out.put_i16(number);
    }

    pub fn int4(&mut self, number: i32) {
        self.out.put_i32(4);
        self.out.put_i32(number);
    }

    pub fn int8(&mut self, number: i64) {
        self.out.put_i32(8);
        self.out.put_i64(number);
    }

    pub fn hash(&mut self, hash: u128) {
        self.out.put_i32(16);
        self.out.put_u128(hash);
    }

    pub fn instant(&mut self, at: Timestamp) {
        self.int8(SqlTimestamp(at).to_wire());
    }

    pub fn quantity(&mut self, quantity: Quantity) -> Result<()> {
        let length_at = self.out.len();
        self.out.put_i32(0);
        SqlQuantity(quantity).write(&mut self.out);
        self.set_length(length_at)
    }

    pub fn text(&mut self, text: &str) -> Result<()> {
        self.out.put_i32(wire_length(text.len())?);
        self.out.put_slice(text.as_bytes());
        Ok(())
    }

    /// An array of texts, which has one dimension and no nulls.
    pub fn texts<'t>(&mut self, texts: impl ExactSizeIterator<Item = &'t str>) -> Result<()> {
        let length_at = self.out.len();
        self.out.put_i32(0);
        self.out.put_i32(i32::from(texts.len() > 0));
        self.out.put_i32(0);
        self.out.put_u32(Type::TEXT.oid());
        if texts.len() > 0 {
            self.out.put_i32(wire_length(texts.len())?);
            // The number of its first element.
            self.out.put_i32(1);
        }
        for text in texts {
            self.text(text)?;
        }
        self.set_length(length_at)
    }

    fn set_length(&mut self, length_at: usize) -> Result<()> {
        let length = wire_length(self.out.len() - length_at - 4)?;
        self.out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    /// Sends the rows with a prepared COPY, inside the caller's transaction.
    pub async fn send(
        mut self,
        client: &ClientWrapper,
        statement: &Statement,
    ) -> std::result::Result<(), Failure> {
        if self.rows == 0 {
            return Ok(());
        }
        // The end of the rows.
        self.out.put_i16(-1);
        let mut sink = pin!(client.copy_in::<_, Bytes>(statement).await?);
        sink.send(self.out.freeze()).await?;
        let written = sink.finish().await?;
        if usize::try_from(written).ok() != Some(self.rows) {
            return Err(Error::Internal { what: "a row was not written".into() }.into());
        }
        Ok(())
    }
}

fn wire_length(bytes: usize) -> Result<i32> {
    i32::try_from(bytes).map_err(|_| Error::Internal { what: "a field is too long".into() })
}
