//! What a verb of the store does with the rows it has read.
//!
//! A verb reads rows, has a rule plan, and applies the plan. A plan is plain data: it says what to
//! write or what to answer, and depends on nothing but its arguments, so both stores decide alike.

/// The outcome of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan<W, A> {
    /// The store writes this, and answers with what it wrote.
    Write(W),
    /// The store answers this and writes nothing.
    Answer(A),
}
