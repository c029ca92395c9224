//! Words and marks of the report: escaping, verdicts for people, badges.
//!
//! Invariant: text from outside reaches the report through `escape` or `name` only.

use crate::rules::drift::Verdict;

/// Text for an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other if other.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A name from outside; its direction of writing changes nothing around it.
pub fn name(text: &str) -> String {
    format!("<bdi>{}</bdi>", escape(text))
}

pub fn verdict_label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "Equal",
        Verdict::Tolerance => "Within tolerance",
        Verdict::WrittenOff => "Written off",
        Verdict::NotBilled => "Before billing",
        Verdict::Shadow => "Shadow",
        Verdict::Waiting => "On its way",
        Verdict::Unread => "Not read",
        Verdict::Unmapped => "No customer",
        Verdict::Replay => "Missing at provider",
        Verdict::Bypass => "Provider higher",
        Verdict::Undecidable => "Undecidable",
    }
}

/// The meaning of a verdict, for a first reader.
pub fn verdict_meaning(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Equal => "The provider shows exactly what was handed to billing.",
        Verdict::Tolerance => "They differ by no more than the meter's drift_tolerance.",
        Verdict::WrittenOff => {
            "An operator wrote off a part of the usage, which is never billed; the rest is equal. \
             The note says who and why."
        }
        Verdict::NotBilled => {
            "The usage lies before the moment from which the meter is billed. It was counted and is \
             on no invoice."
        }
        Verdict::Shadow => {
            "The usage was counted in shadow mode. It was compared at most, and is on no invoice."
        }
        Verdict::Waiting => {
            "They differ and are expected to agree by themselves: usage is still being sent, or the \
             provider's summary is behind. The next pass looks again."
        }
        Verdict::Unread => {
            "The provider's total could not be read in this pass, so nothing is said about it. The \
             next pass reads it; until then it is neither equal nor different."
        }
        Verdict::Unmapped => {
            "The tenant has no customer at the provider, so this usage is not billed. It is sent \
             once the tenant has a customer."
        }
        Verdict::Replay => {
            "The provider provably lacks usage that was counted. Sending it again cannot bill it \
             twice; a pass with --apply does so."
        }
        Verdict::Bypass => {
            "The provider shows more than was ever sent from here. Something else reports usage for \
             this customer. It is never corrected from here; an operator must find the source."
        }
        Verdict::Undecidable => {
            "The known facts have several explanations, so nothing is sent. An operator must \
             compare and decide."
        }
    }
}

pub fn badge(verdict: Verdict) -> String {
    format!("<span class=\"badge b-{}\">{}</span>", verdict.name(), verdict_label(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_is_markup() {
        let check = |text: &str, expected: &str| assert_eq!(escape(text), expected);
        check("acme & sons", "acme &amp; sons");
        check("<script>alert('x')</script>", "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;");
        check("\" onload=\"x", "&quot; onload=&quot;x");
        check("a\0b\u{1b}c", "a\u{fffd}b\u{fffd}c");
        check("é漢", "é漢");
    }
}
