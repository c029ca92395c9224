//! Statements with optional conditions: only those that were asked for are in the text, so each
//! combination is planned for its own index.

use super::value::{IntoValue, Value};

/// A statement under construction.
pub struct Filter {
    sql: String,
    values: Vec<Value>,
    word: &'static str,
}

impl Filter {
    /// Begins with everything before `WHERE`.
    pub fn new(select: &str) -> Self {
        Self { sql: select.to_owned(), values: Vec::new(), word: "WHERE" }
    }

    /// Adds a condition in which `$` is this value.
    pub fn and(mut self, condition: &str, value: impl IntoValue) -> Self {
        self.values.push(value.to_value());
        let place = format!("${}", self.values.len());
        self.and_always(&condition.replace('$', &place))
    }

    /// Adds a condition if its value is given.
    pub fn and_if(self, condition: &str, value: Option<impl IntoValue>) -> Self {
        match value {
            Some(value) => self.and(condition, value),
            None => self,
        }
    }

    /// Adds a condition without a value.
    pub fn and_always(mut self, condition: &str) -> Self {
        self.sql.push_str(&format!(" {} {condition}", self.word));
        self.word = "AND";
        self
    }

    /// Ends with the order and the most rows; the statement and its values.
    pub fn order(mut self, order: &str, limit: usize) -> (String, Vec<Value>) {
        self.values.push(limit.to_value());
        self.sql.push_str(&format!(" ORDER BY {order} LIMIT ${}", self.values.len()));
        (self.sql, self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_in_the_statement() {
        let (sql, values) = Filter::new("SELECT a FROM t")
            .and_if("b = $", Some(7i64))
            .and_if("c < $", None::<i64>)
            .and_always("d IS NULL")
            .order("a DESC", 3);
        assert_eq!(sql, "SELECT a FROM t WHERE b = $1 AND d IS NULL ORDER BY a DESC LIMIT $2");
        assert_eq!(values, [Value::Integer(7), Value::Integer(3)]);
    }
}
