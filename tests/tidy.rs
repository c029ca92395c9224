//! The house rules that neither the compiler nor a lint can check: the direction of modules, sizes,
//! names, words, migration pairs, decisions and leftovers. STYLE.md gives the reasons.
//!
//! Each rule is a function from files to findings; one test runs it over the repository, another
//! over small planted faults, so that a rule which has stopped finding anything is noticed. A
//! finding says where, and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// Which modules of the crate a module may use besides itself. `lib.rs` and `main.rs` may use all.
/// The crate `stripe_sim` counts as a module: only the command line uses the simulator.
const DIRECTION: [(&str, &[&str]); 15] = [
    ("rules", &[]),
    ("api", &["rules"]),
    ("faults", &[]),
    ("heavy", &[]),
    ("clock", &["rules", "faults"]),
    ("config", &["rules"]),
    ("telemetry", &["rules", "clock", "config"]),
    ("store", &["rules", "clock", "config", "faults", "heavy"]),
    ("provider", &["rules", "clock", "config", "faults"]),
    ("destinations", &["rules", "clock", "config"]),
    ("tax", &["rules", "config"]),
    ("jobs", &["rules", "store", "provider", "destinations", "clock", "config", "faults"]),
    (
        "http",
        &[
            "rules",
            "api",
            "heavy",
            "store",
            "provider",
            "tax",
            "jobs",
            "clock",
            "config",
            "telemetry",
        ],
    ),
    (
        "cli",
        &[
            "rules",
            "api",
            "clock",
            "config",
            "telemetry",
            "store",
            "provider",
            "destinations",
            "stripe_sim",
            "tax",
            "jobs",
            "http",
        ],
    ),
    ("fuzzing", &["rules", "config", "store", "provider", "http"]),
];

/// Commits whose subjects are looked at, without merges; the log before them has another form.
const COMMITS: &str = "-20";
const SUBJECT_CHARS_MAX: usize = 72;

const LINES_MAX: usize = 800;
const TEST_LINES_MAX: usize = 1_200;
const COLUMNS_MAX: usize = 100;

/// Words that say nothing about what a thing does; everything gathers under such a name.
const BANNED_WORDS: [&str; 9] =
    ["manager", "managers", "helper", "helpers", "util", "utils", "common", "service", "services"];

/// Words that the glossary in ARCHITECTURE.md replaces, and what to write instead. A word matches
/// in identifiers too: `TakenBack` and `taken_back` are `taken back`.
const REPLACED_WORDS: [(&str, &str); 27] = [
    ("take back", "void"),
    ("takes back", "voids"),
    ("taken back", "voided"),
    ("taking back", "voiding"),
    ("allowance", "entitlement"),
    ("allowances", "entitlements"),
    ("agreement", "subscription record"),
    ("agreements", "subscription records"),
    ("revive", "resume"),
    ("revives", "resumes"),
    ("revived", "resumed"),
    ("revival", "resume"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("hurry", "expedite"),
    ("hurries", "expedites"),
    ("hurried", "expedited"),
    ("reckon", "compute"),
    ("reckoned", "computed"),
    ("reckoning", "balance"),
    ("told", "sent, shown or reported"),
    ("untold", "unsent"),
    ("stands", "is, holds or exists"),
    ("whoever", "the caller, or name it"),
    ("became of", "the outcome or state"),
    ("new message", "new change"),
];

/// Where the replaced words are looked for: what users and readers of the product meet.
const WORDED: [&str; 7] = [
    "src/",
    "idempotency/src/",
    "docs/",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "counterfoil.default.toml",
];

/// The one problem code that ends so and is not about a thing that does not exist.
const OUTCOME_UNKNOWN: &str = "outcome_unknown";

/// Files whose text is looked at.
const TEXT_FILES: [&str; 14] = [
    "rs", "sql", "toml", "md", "sh", "py", "ts", "js", "html", "css", "yml", "yaml", "json", "run",
];

/// Files in which a reminder needs an issue number. Not Markdown, which speaks about the rule.
const CODE_FILES: [&str; 6] = ["rs", "sql", "toml", "sh", "py", "ts"];

/// The sources of every package.
const PACKAGES: [&str; 4] = ["src/", "idempotency/src/", "stripe-sim/src/", "xtask/src/"];

/// Folders that hold nothing written by hand.
const FOLDERS_LEFT_OUT: [&str; 6] =
    ["target", ".git", "node_modules", "counterfoil-data", "vectors", "vendor"];

// ---------------------------------------------------------------------------------------------
// Files and findings

struct Source {
    /// From the root of the repository, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    fn ends_with(&self, endings: &[&str]) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        endings.contains(&name.rsplit('.').next().unwrap_or(name))
    }

    fn is_rust(&self) -> bool {
        self.ends_with(&["rs"])
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
    }

    fn finding(&self, line: usize, advice: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, advice: advice.into() }
    }
}

struct Finding {
    path: String,
    line: usize,
    advice: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.advice)
    }
}

/// Every text file of the repository, in the order of paths.
fn repository() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    read_folder(root, "", &mut sources);
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

fn read_folder(folder: &Path, prefix: &str, sources: &mut Vec<Source>) {
    let entries = std::fs::read_dir(folder).expect("a folder of the repository can be read");
    for entry in entries {
        let entry = entry.expect("an entry of the repository can be read");
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        let path = format!("{prefix}{name}");
        if entry.file_type().expect("its type can be read").is_dir() {
            if !FOLDERS_LEFT_OUT.contains(&name.as_str()) {
                read_folder(&entry.path(), &format!("{path}/"), sources);
            }
        } else if Source::new(&path, "").ends_with(&TEXT_FILES) {
            // A file that is not UTF-8 is no text, whatever its name says.
            if let Ok(text) = std::fs::read_to_string(entry.path()) {
                sources.push(Source { path, text });
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Just enough of Rust's grammar to tell code from comments and literals

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    Code,
    Comment,
    Literal,
}

fn pieces(text: &str) -> Vec<(Piece, &str)> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if let Some((piece, length)) = comment_or_literal(rest) {
            pieces.push((Piece::Code, &text[start..at]));
            pieces.push((piece, &rest[..length]));
            at += length;
            start = at;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    pieces.push((Piece::Code, &text[start..]));
    pieces
}

/// What the text begins with, and its length in bytes.
fn comment_or_literal(rest: &str) -> Option<(Piece, usize)> {
    if rest.starts_with("//") {
        return Some((Piece::Comment, rest.find('\n').unwrap_or(rest.len())));
    }
    if rest.starts_with("/*") {
        return Some((Piece::Comment, block_comment_length(rest)));
    }
    if let Some(inner) = rest.strip_prefix('"') {
        return Some((Piece::Literal, 1 + quoted_length(inner, '"')));
    }
    if let Some(after_r) = rest.strip_prefix('r') {
        let hashes = after_r.len() - after_r.trim_start_matches('#').len();
        let inner = after_r[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = inner.find(&end).map_or(inner.len(), |at| at + end.len());
        return Some((Piece::Literal, rest.len() - inner.len() + length));
    }
    // A quote opens a character, unless it opens the name of a lifetime.
    let inner = rest.strip_prefix('\'')?;
    let mut characters = inner.chars();
    let (first, second) = (characters.next()?, characters.next()?);
    (first == '\\' || second == '\'').then(|| (Piece::Literal, 1 + quoted_length(inner, '\'')))
}

fn block_comment_length(rest: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Up to and with the closing quote.
fn quoted_length(inner: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in inner.char_indices() {
        if !escaped && character == quote {
            return at + 1;
        }
        escaped = !escaped && character == '\\';
    }
    inner.len()
}

/// The text with everything but these pieces made blank; lines stay where they are.
fn only(wanted: &[Piece], text: &str) -> String {
    let blank = |part: &str| part.chars().filter(|c| *c == '\n').collect::<String>();
    pieces(text)
        .into_iter()
        .map(
            |(piece, part)| {
                if wanted.contains(&piece) { part.to_owned() } else { format!(" {}", blank(part)) }
            },
        )
        .collect()
}

fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

// ---------------------------------------------------------------------------------------------
// Direction

fn check_direction(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let Some(inside) = source.path.strip_prefix("src/") else { continue };
        let parts: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
        let own = parts[0];
        if own == "lib" || own == "main" {
            continue;
        }
        let Some((_, allowed)) = DIRECTION.iter().find(|(name, _)| *name == own) else {
            let advice = "this module has no line in DIRECTION (tests/tidy.rs); add one";
            findings.push(source.finding(1, advice));
            continue;
        };
        for (line, used) in modules_used(&only(&[Piece::Code], &source.text), parts.len()) {
            if used != own && !allowed.contains(&used.as_str()) {
                let advice = format!(
                    "`{own}` must not use `{used}`; move what it needs down, or pass it in"
                );
                findings.push(source.finding(line, advice));
            }
        }
    }
    findings
}

/// The modules at the root of the crate that the code names, with lines. `depth` is how far below
/// the root the file's own module is.
fn modules_used(code: &str, depth: usize) -> Vec<(usize, String)> {
    let mut used = Vec::new();
    for (at, word) in code.match_indices("crate::") {
        let line = line_of(code, at);
        used.extend(first_names(&code[at + word.len()..]).into_iter().map(|name| (line, name)));
    }
    for (at, _) in code.match_indices("stripe_sim::") {
        used.push((line_of(code, at), "stripe_sim".to_owned()));
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with("super::") {
            continue;
        }
        let after = code[at..].trim_start_matches("super::");
        let supers = (code.len() - at - after.len()) / "super::".len();
        // In a module inside the file one `super` more stays in the file, so what follows counts
        // only if it is the name of a module at the root.
        if supers >= depth {
            let known = |name: &String| DIRECTION.iter().any(|(module, _)| module == name);
            let names = first_names(after).into_iter().filter(known);
            used.extend(names.map(|name| (line_of(code, at), name)));
        }
    }
    used
}

/// The first name of a path, or of each path in a group `{a, b::{c, d}}`.
fn first_names(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return vec![identifier(path).to_owned()];
    };
    let (mut names, mut depth, mut expected) = (Vec::new(), 1_usize, true);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => expected = true,
            _ if expected && !character.is_whitespace() => {
                names.push(identifier(&group[at..]).to_owned());
                expected = false;
            }
            _ => {}
        }
    }
    names
}

// ---------------------------------------------------------------------------------------------
// Sizes and openings

fn check_sizes(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.ends_with(&["rs", "sql"])) {
        let max = if source.is_test() { TEST_LINES_MAX } else { LINES_MAX };
        let lines = source.text.lines().count();
        if lines > max {
            let advice = format!("{lines} lines, and {max} are the most; split it by noun");
            findings.push(source.finding(max + 1, advice));
        }
        findings.extend(wide_lines(source));
    }
    findings
}

/// Lines beyond the margin. What stands in a literal does not count, nor a line with a URL: neither
/// can be broken without harm.
fn wide_lines(source: &Source) -> Vec<Finding> {
    let narrowed = if source.is_rust() {
        only(&[Piece::Code, Piece::Comment], &source.text)
    } else {
        source.text.clone()
    };
    let wide = |line: &str| line.chars().count() > COLUMNS_MAX && !line.contains("://");
    let numbered = narrowed.lines().zip(1..).filter(|(line, _)| wide(line));
    let advice = format!("wider than {COLUMNS_MAX} columns; break the line");
    numbered.map(|(_, number)| source.finding(number, advice.clone())).collect()
}

fn check_openings(sources: &[Source]) -> Vec<Finding> {
    let advice = "open the file with `//!`: what it holds, its invariant, what a crash leaves";
    let silent = |source: &&Source| source.is_rust() && !source.text.starts_with("//! ");
    sources.iter().filter(silent).map(|source| source.finding(1, advice)).collect()
}

// ---------------------------------------------------------------------------------------------
// Names

fn check_names(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        if source.path.ends_with("/mod.rs") {
            let advice = "no mod.rs: name the file after its folder and put it beside it";
            findings.push(source.finding(1, advice));
        }
        for word in source.path.split(['/', '.', '_', '-']) {
            findings.extend(banned(word).map(|advice| source.finding(1, advice)));
        }
        if source.is_rust() {
            findings.extend(banned_type_names(source));
        }
    }
    findings
}

fn banned_type_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let code = only(&[Piece::Code], &source.text);
    for (line, number) in code.lines().zip(1..) {
        for word in type_name(line).map(camel_words).unwrap_or_default() {
            findings.extend(banned(&word).map(|advice| source.finding(number, advice)));
        }
    }
    findings
}

/// The name of the type that the line defines. An indented `type` belongs to somebody's trait, who
/// chose the name.
fn type_name(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let keyword = words.next()?;
    let defines = ["struct", "enum", "trait", "union"].contains(&keyword)
        || (keyword == "type" && !line.starts_with(' '));
    if defines { words.next().map(identifier) } else { None }
}

fn camel_words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for character in name.chars() {
        if character.is_uppercase() || words.is_empty() {
            words.push(String::new());
        }
        words.last_mut().expect("one was pushed").extend(character.to_lowercase());
    }
    words
}

fn banned(word: &str) -> Option<String> {
    let advice = format!("`{word}` says nothing; name it by what it does or holds");
    BANNED_WORDS.contains(&word).then_some(advice)
}

// ---------------------------------------------------------------------------------------------
// Words

fn check_words(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        if !WORDED.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        for (line, number) in source.text.lines().zip(1..) {
            let spaced = spaced_words(line);
            for (word, instead) in REPLACED_WORDS {
                if spaced.contains(&format!(" {word} ")) {
                    let advice = format!("`{word}` is replaced by: {instead}");
                    findings.push(source.finding(number, advice));
                }
            }
            if let Some(code) = code_of_nothing(line) {
                let thing = code.trim_end_matches("_unknown");
                let advice = format!("call the code `unknown_{thing}`, as the others");
                findings.push(source.finding(number, advice));
            }
        }
    }
    findings
}

/// The words of a line in lower case, those of identifiers too, with one space around each.
fn spaced_words(line: &str) -> String {
    let mut spaced = String::from(" ");
    let mut lower_before = false;
    for character in line.chars() {
        if character.is_alphanumeric() {
            if character.is_uppercase() && lower_before {
                spaced.push(' ');
            }
            spaced.extend(character.to_lowercase());
        } else if !spaced.ends_with(' ') {
            spaced.push(' ');
        }
        lower_before = character.is_lowercase();
    }
    spaced.push(' ');
    spaced
}

/// A code `x_unknown` in the line, as a literal.
fn code_of_nothing(line: &str) -> Option<&str> {
    let at = line.find("_unknown\"")?;
    let start = line[..at].rfind('"')? + 1;
    let code = &line[start..at + "_unknown".len()];
    let plain = code.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (plain && code != OUTCOME_UNKNOWN).then_some(code)
}

// ---------------------------------------------------------------------------------------------
// Leftovers

fn check_leftovers(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        for (line, number) in source.text.lines().zip(1..) {
            if ["<<<<<<< ", ">>>>>>> ", "||||||| "].iter().any(|mark| line.starts_with(mark)) {
                findings.push(source.finding(number, "a conflict marker; finish the merge"));
            }
        }
        if !source.ends_with(&CODE_FILES) {
            continue;
        }
        let written = if source.is_rust() {
            only(&[Piece::Code, Piece::Comment], &source.text)
        } else {
            source.text.clone()
        };
        for (line, number) in written.lines().zip(1..) {
            if reminds_without_issue(line) {
                let advice = "a reminder without an issue number (#12); do it or write an issue";
                findings.push(source.finding(number, advice));
            }
        }
    }
    findings
}

fn reminds_without_issue(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let reminds = words.any(|word| ["TODO", "FIXME", "XXX"].contains(&word));
    let mut after_hashes = line.split('#').skip(1);
    reminds && !after_hashes.any(|after| after.starts_with(|c: char| c.is_ascii_digit()))
}

// ---------------------------------------------------------------------------------------------
// Reachability

/// Files that no `mod` line leads to are not compiled, and rot unseen.
fn check_reachable(sources: &[Source]) -> Vec<Finding> {
    let in_tree = |path: &str| PACKAGES.iter().any(|folder| path.starts_with(folder));
    let files: BTreeMap<&str, &Source> = sources
        .iter()
        .filter(|source| source.is_rust() && in_tree(&source.path))
        .map(|source| (source.path.as_str(), source))
        .collect();
    let is_root = |path: &str| {
        path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("src/bin/")
    };
    let mut open: Vec<String> =
        files.keys().filter(|path| is_root(path)).map(|path| (*path).to_owned()).collect();
    let mut reached = BTreeSet::new();
    while let Some(path) = open.pop() {
        let Some(source) = files.get(path.as_str()) else { continue };
        if reached.insert(path.clone()) {
            let stem = path.trim_end_matches(".rs");
            let folder =
                if is_root(&path) { stem.rsplit_once('/').map_or("", |p| p.0) } else { stem };
            let declared = modules_declared(&only(&[Piece::Code], &source.text));
            open.extend(declared.into_iter().map(|name| format!("{folder}/{name}.rs")));
        }
    }
    let advice = "no `mod` line leads here; declare it or delete it";
    let lost = files.values().filter(|source| !reached.contains(&source.path));
    lost.map(|source| source.finding(1, advice)).collect()
}

fn modules_declared(code: &str) -> Vec<String> {
    code.lines()
        .filter_map(|line| {
            let (before, after) = line.split_once("mod ")?;
            let starts_item = before.trim().is_empty() || before.trim_start().starts_with("pub");
            let name = after.trim().strip_suffix(';')?;
            starts_item.then(|| name.to_owned())
        })
        .collect()
}

// ---------------------------------------------------------------------------------------------
// Migrations

const MIGRATION_FOLDERS: [&str; 2] = ["migrations/sqlite/", "migrations/postgres/"];

fn check_migrations(sources: &[Source]) -> Vec<Finding> {
    let folders = MIGRATION_FOLDERS.map(|folder| migrations_in(folder, sources));
    let mut findings = Vec::new();
    for migrations in &folders {
        for ((name, source), expected) in migrations.iter().zip(1_u32..) {
            if !is_migration_name(name, expected) {
                let advice = format!("name it {expected:04}_words_of_what_it_does.sql");
                findings.push(source.finding(1, advice));
            }
            findings.extend(columns_without_comment(source));
        }
    }
    // A store that does not exist yet has no folder and needs no pairs.
    if folders.iter().all(|migrations| !migrations.is_empty()) {
        for (these, others) in [(&folders[0], &folders[1]), (&folders[1], &folders[0])] {
            for (name, source) in these.iter().filter(|(name, _)| !others.contains_key(*name)) {
                let advice = format!("the other store has no {name}; migrations come in pairs");
                findings.push(source.finding(1, advice));
            }
        }
    }
    findings
}

fn migrations_in<'s>(folder: &str, sources: &'s [Source]) -> BTreeMap<&'s str, &'s Source> {
    sources.iter().filter_map(|s| Some((s.path.strip_prefix(folder)?, s))).collect()
}

fn is_migration_name(name: &str, number: u32) -> bool {
    let words = name.strip_prefix(&format!("{number:04}_")).and_then(|n| n.strip_suffix(".sql"));
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    words.is_some_and(|words| !words.is_empty() && words.chars().all(allowed))
}

/// Where we are in a file of SQL.
enum Place {
    Outside,
    /// After CREATE TABLE, before its list of columns.
    Heading,
    /// In the list; `depth` counts open parentheses, and `begins` says that a column comes next.
    Columns {
        depth: i32,
        begins: bool,
    },
}

/// Every column says what it holds, on its line or on the line before.
fn columns_without_comment(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut place, mut comment_before) = (Place::Outside, false);
    for (line, number) in source.text.lines().zip(1..) {
        let (code, comment) = match line.split_once("--") {
            Some((code, comment)) => (code.trim(), !comment.trim().is_empty()),
            None => (line.trim(), false),
        };
        if let Place::Columns { depth: 1, begins: true } = place
            && is_column(code)
            && !comment
            && !comment_before
        {
            let advice = "a column without a comment; say what it holds, and in which unit";
            findings.push(source.finding(number, advice));
        }
        let (next, crowded) = after_line(place, code);
        if crowded {
            findings.push(source.finding(number, "give each column a line and a comment"));
        }
        place = next;
        comment_before = comment && code.is_empty();
    }
    findings
}

/// The place after a line of code, and whether columns stand on the line of CREATE TABLE itself.
fn after_line(place: Place, code: &str) -> (Place, bool) {
    let place = match place {
        Place::Outside if creates_table(code) => Place::Heading,
        Place::Outside | Place::Heading | Place::Columns { .. } => place,
    };
    match place {
        Place::Outside => (Place::Outside, false),
        Place::Heading => match code.split_once('(') {
            Some((_, after)) if after.trim().is_empty() => {
                (Place::Columns { depth: 1, begins: true }, false)
            }
            Some((_, after)) => match 1 + balance(after) {
                depth if depth > 0 => (Place::Columns { depth, begins: false }, true),
                _ => (Place::Outside, true),
            },
            None if code.ends_with(';') => (Place::Outside, false),
            None => (Place::Heading, false),
        },
        Place::Columns { depth, begins } => match depth + balance(code) {
            1 if code.is_empty() => (Place::Columns { depth: 1, begins }, false),
            depth if depth > 0 => {
                (Place::Columns { depth, begins: depth == 1 && code.ends_with(',') }, false)
            }
            _ => (Place::Outside, false),
        },
    }
}

fn creates_table(code: &str) -> bool {
    let upper = code.to_uppercase();
    let before_name = upper.split_once("TABLE ").map_or("", |(before, _)| before);
    let plain = ["CREATE ", "CREATE UNLOGGED ", "CREATE TEMP ", "CREATE TEMPORARY "];
    plain.contains(&before_name) && !upper.contains(" PARTITION OF ")
}

fn is_column(code: &str) -> bool {
    let first = identifier(code).to_uppercase();
    let others = ["", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK", "CONSTRAINT", "EXCLUDE", "LIKE"];
    code.starts_with('"') || !others.contains(&first.as_str())
}

fn balance(code: &str) -> i32 {
    code.chars().map(|c| i32::from(c == '(') - i32::from(c == ')')).sum()
}

// ---------------------------------------------------------------------------------------------
// Decisions

/// How lines of a decision begin, in this order; others may stand in between.
const DECISION_FORM: [&str; 5] =
    ["- Status: ", "- Date: 20", "## Question", "## Decision", "## Consequences"];

/// A decision that can be read as the others are read is found, and believed, years later.
fn check_decisions(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let Some(name) = source.path.strip_prefix("docs/decisions/") else { continue };
        let title = format!("# {}: ", name.split('-').next().unwrap_or(name));
        if !source.text.starts_with(&title) {
            findings.push(source.finding(1, format!("begin the title with {title:?}")));
        }
        let mut lines = source.text.lines();
        let absent = DECISION_FORM.iter().find(|form| !lines.any(|line| line.starts_with(**form)));
        if let Some(form) = absent {
            let order = DECISION_FORM.join(", ");
            let advice = format!("there is no {form:?} in its place; the order is {order}");
            findings.push(source.finding(1, advice));
        }
    }
    findings
}

// ---------------------------------------------------------------------------------------------
// Commits

/// What is wrong with a commit's subject, whose form is `area: do this`.
fn subject_fault(subject: &str) -> Option<&'static str> {
    if subject.chars().count() > SUBJECT_CHARS_MAX {
        return Some("a subject has 72 characters at most; the why goes into the body");
    }
    let Some((area, what)) = subject.split_once(": ") else {
        return Some("begin the subject with its area, such as `http: `");
    };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-,./ ".contains(c);
    if area.is_empty() || !area.chars().all(plain) {
        return Some("areas are names of modules or folders in lower case, with commas");
    }
    let starts_low = !what.starts_with(char::is_uppercase) && !what.trim().is_empty();
    let advice = "after the area comes an imperative in lower case, without a full stop";
    (!starts_low || what.ends_with('.')).then_some(advice)
}

/// The latest subjects; none without git or its history, as in a source archive.
fn latest_subjects() -> Vec<String> {
    let mut git = std::process::Command::new("git");
    git.args(["log", "--no-merges", COMMITS, "--format=%s"]);
    let Ok(output) = git.current_dir(env!("CARGO_MANIFEST_DIR")).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

// ---------------------------------------------------------------------------------------------
// The rules over the repository

#[test]
fn the_repository_is_read() {
    let sources = repository();
    for path in ["src/lib.rs", "src/rules/verdict.rs", "xtask/src/main.rs", "tests/tidy.rs"] {
        assert!(sources.iter().any(|source| source.path == path), "{path} was not read");
    }
    assert!(sources.iter().all(|source| !source.path.starts_with("target/")));
}

#[test]
fn the_repository_keeps_every_rule() {
    let rules = [
        check_direction,
        check_sizes,
        check_openings,
        check_names,
        check_words,
        check_leftovers,
        check_reachable,
        check_migrations,
        check_decisions,
    ];
    let sources = repository();
    let findings: Vec<Finding> = rules.iter().flat_map(|rule| rule(&sources)).collect();
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{} findings\n{}\n", lines.len(), lines.join("\n"));
}

#[test]
fn commits_say_where_and_what() {
    for subject in latest_subjects() {
        assert_eq!(subject_fault(&subject), None, "{subject}");
    }
}

// ---------------------------------------------------------------------------------------------
// The rules over planted faults

/// Runs a rule over files given as (path, text) and compares the places it finds.
fn check(rule: fn(&[Source]) -> Vec<Finding>, files: &[(&str, &str)], expected: &[&str]) {
    let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    let found: Vec<String> =
        rule(&sources).iter().map(|f| format!("{}:{}", f.path, f.line)).collect();
    assert_eq!(found, expected, "for {files:?}");
}

/// The same over one file, whose lines with findings are expected.
fn planting(rule: fn(&[Source]) -> Vec<Finding>) -> impl Fn(&str, &str, &[usize]) {
    move |path, text, lines| {
        let expected: Vec<String> = lines.iter().map(|line| format!("{path}:{line}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check(rule, &[(path, text)], &expected);
    }
}

#[test]
fn planted_directions() {
    let one = planting(check_direction);
    one("src/rules/a.rs", "use crate::rules::b;\nuse crate::clock::Clock;\n", &[2]);
    one("src/rules/a.rs", "fn f() { crate::store::g() }", &[1]);
    one("src/store/a.rs", "use crate::{rules::{x, jobs}, clock};", &[]);
    one("src/store/a.rs", "use crate::{\n    rules::{x, y},\n    http,\n};", &[1]);
    one("src/store.rs", "use super::jobs::Ingest;", &[1]);
    one("src/store/a.rs", "use super::jobs;\nuse super::super::http;", &[2]);
    one("src/jobs.rs", "use crate::http;", &[1]);
    one("src/http/a.rs", "use crate::{telemetry, store, jobs, rules, config, clock};", &[]);
    one("src/cli/serve.rs", "use crate::http;", &[]);
    one("src/api/a.rs", "use crate::rules;\nuse crate::store;", &[2]);
    one("src/api/a.rs", "use crate::http::App;", &[1]);
    one("src/novel.rs", "", &[1]);
    one("src/provider/a.rs", "use stripe_sim::Simulator;", &[1]);
    one("src/cli/stripe_sim.rs", "use stripe_sim::Simulator;", &[]);
    // Comments and literals use nothing.
    one(
        "src/rules/a.rs",
        "/// [crate::store]\n/* crate::http */ const A: &str = \"crate::jobs\";",
        &[],
    );
    one("src/rules/a.rs", "const A: &str = r#\"\" crate::jobs\"#; const B: char = '\"';", &[]);
    one("src/rules/a.rs", "fn f<'a>(_: &'a str) {} // '\nuse crate::jobs;", &[2]);
}

#[test]
fn planted_sizes() {
    let one = planting(check_sizes);
    let lines = |count: usize| "\n".repeat(count);
    one("src/a.rs", &lines(800), &[]);
    one("src/a.rs", &lines(801), &[801]);
    one("tests/a.rs", &lines(1_200), &[]);
    one("src/a/tests.rs", &lines(1_201), &[1201]);
    let wide = "é".repeat(101);
    one("src/a.rs", &format!("\n// {}", &wide[..194]), &[]);
    one("src/a.rs", &format!("\n// {wide}"), &[2]);
    one("src/a.rs", &format!("const A: &str = \"{wide}\";"), &[]);
    one("src/a.rs", &format!("const A: &str = r#\"\n{wide}\n\"#;"), &[]);
    one("src/a.rs", &format!("// https://example.com/{wide}"), &[]);
    one("migrations/sqlite/a.sql", &format!("-- {wide}"), &[1]);
    one("docs/a.md", &wide, &[]);
}

#[test]
fn planted_openings() {
    check(check_openings, &[("src/a.rs", "//! Says.\n"), ("a.md", "text")], &[]);
    check(check_openings, &[("src/a.rs", "use x;\n//! Late.")], &["src/a.rs:1"]);
    check(
        check_openings,
        &[("tests/a.rs", ""), ("xtask/src/b.rs", "//")],
        &["tests/a.rs:1", "xtask/src/b.rs:1"],
    );
}

#[test]
fn planted_names() {
    let one = planting(check_names);
    one("src/a/mod.rs", "", &[1]);
    one("src/utils.rs", "", &[1]);
    one("tests/common/a.rs", "", &[1]);
    one("src/key_helper.rs", "", &[1]);
    one("src/a.rs", "//! A\npub struct KeyManager;", &[2]);
    one("src/a.rs", "pub(crate) enum ServiceState<T> {}", &[1]);
    one("src/a.rs", "pub trait UtilA {}\ntype B = CommonC;", &[1]);
    one("src/a.rs", "impl Layer for A {\n    type Service = B;\n}\nuse tower::Service;", &[]);
    one("src/a.rs", "struct Utility;\nstruct Commonwealth;", &[]);
}

#[test]
fn planted_words() {
    let one = planting(check_words);
    one("src/a.rs", "fn a() {}\nstruct TakenBack;", &[2]);
    one("src/a.rs", "fn take_back() {}", &[1]);
    one("src/http/a.rs", "post, path = \"/v1/grants/{grant}/take-back\"", &[1]);
    one("src/a.rs", "// Whoever asks is told.", &[1, 1]);
    one("docs/a.md", "The cause is mended.\nWhat became of it?", &[1, 2]);
    one("src/a.rs", "const A: &str = \"meter_unknown\";", &[1]);
    one("src/a.rs", "const A: &str = \"outcome_unknown\";\n// A meter_unknown. \"", &[]);
    one("src/a.rs", "// He understands. It is recommended: standstill, disagreements.", &[]);
    one("tests/a.rs", "// Whoever asks is told.", &[]);
    one("counterfoil.default.toml", "# An agreement.", &[1]);
}

#[test]
fn planted_leftovers() {
    let one = planting(check_leftovers);
    one("src/a.rs", "fn a() {}\n// TODO later", &[2]);
    one("src/a.rs", "// TODO(#12): later\n// FIXME #7", &[]);
    one("src/a.rs", "// FIXME # soon", &[1]);
    one("src/a.rs", "const A: &str = \"TODO\"; // METHODTODO", &[]);
    one("migrations/sqlite/a.sql", "-- XXX", &[1]);
    one("STYLE.md", "No TODO without a number.", &[]);
    one("a.md", "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> other\n", &[2, 6]);
}

#[test]
fn planted_lost_files() {
    let tree = |lib: &'static str| {
        vec![
            ("src/lib.rs", lib),
            ("src/main.rs", "fn main() {}"),
            ("src/a.rs", "mod b;\n#[cfg(test)]\nmod tests;\nmod inline { }"),
            ("src/a/b.rs", ""),
            ("src/a/tests.rs", ""),
            ("xtask/src/main.rs", "mod steps;"),
            ("xtask/src/steps.rs", ""),
            ("stripe-sim/src/lib.rs", "mod meters;"),
            ("stripe-sim/src/meters.rs", ""),
        ]
    };
    check(check_reachable, &tree("pub mod a;"), &[]);
    check(check_reachable, &tree("// mod a;"), &["src/a.rs:1", "src/a/b.rs:1", "src/a/tests.rs:1"]);
}

#[test]
fn planted_migrations() {
    let (sqlite, postgres) = ("migrations/sqlite/", "migrations/postgres/");
    let names = |files: &[(&str, &str)], expected: &[&str]| {
        let paths: Vec<String> =
            files.iter().map(|(folder, name)| format!("{folder}{name}")).collect();
        let empty: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), "")).collect();
        check(check_migrations, &empty, expected);
    };
    names(&[], &[]);
    names(&[(sqlite, "0001_start.sql")], &[]);
    names(&[(sqlite, "0001_start.sql"), (postgres, "0001_start.sql")], &[]);
    names(
        &[(sqlite, "0001_start.sql"), (postgres, "0001_begin.sql")],
        &["migrations/sqlite/0001_start.sql:1", "migrations/postgres/0001_begin.sql:1"],
    );
    names(&[(sqlite, "0002_start.sql")], &["migrations/sqlite/0002_start.sql:1"]);
    names(&[(sqlite, "0001_a.sql"), (sqlite, "0001_b.sql")], &["migrations/sqlite/0001_b.sql:1"]);
    names(&[(sqlite, "0001_A.sql")], &["migrations/sqlite/0001_A.sql:1"]);
}

#[test]
fn planted_decisions() {
    let (path, place) = ("docs/decisions/0007-a.md", "docs/decisions/0007-a.md:1");
    let good = "# 0007: A\n\n- Status: accepted\n- Date: 2026-11-15\n\n## Question\n\nWhy?\n\n\
                ## Choices\n\n## Decision\n\nSo.\n\n## Consequences\n";
    check(check_decisions, &[(path, good), ("docs/operating.md", "# Operating")], &[]);
    for (from, to) in [
        ("# 0007:", "# 7."),
        ("0007", "0008"),
        ("- Status", "Status"),
        ("- Date: 2026-11-15\n", ""),
        ("## Question", "## Context"),
        ("## Decision", "## Consequences"),
    ] {
        check(check_decisions, &[(path, &good.replacen(from, to, 1))], &[place]);
    }
}

#[test]
fn planted_subjects() {
    let good = ["http: name the table of a corrupt row", "api, http, cli: share the wire types"];
    for subject in good {
        assert_eq!(subject_fault(subject), None, "{subject}");
    }
    let long = format!("http: {}", "x".repeat(67));
    for subject in [
        "The test of expiry begins before its hour",
        "SQLite: wait for nobody",
        "http: Name the table",
        "http: name the table.",
        "http: ",
        &long,
    ] {
        assert!(subject_fault(subject).is_some(), "{subject}");
    }
}

#[test]
fn planted_columns() {
    let planted = planting(check_migrations);
    let one = |text: &str, lines: &[usize]| planted("migrations/sqlite/0001_a.sql", text, lines);
    one(
        "CREATE TABLE a (\n  -- Which.\n  b INTEGER,\n  c TEXT -- What.\n) STRICT;\nSELECT 1;",
        &[],
    );
    one("CREATE TABLE a (\n  b INTEGER, -- Which.\n  c TEXT,\n  d TEXT\n);", &[3, 4]);
    one("create table if not exists a\n(\n  b INTEGER\n);", &[3]);
    one("CREATE TABLE a (\n  -- Which.\n\n  b INTEGER,\n  c TEXT --\n);", &[4, 5]);
    one("CREATE TABLE a (b INTEGER, c TEXT);\nCREATE TABLE d (\n  e TEXT\n);", &[1, 3]);
    // What is no column needs no comment; nor do the further lines of one.
    one(
        "CREATE TABLE a (\n  b TEXT -- What.\n    CHECK (\n      b <> ''\n    ),\n  PRIMARY KEY (b)\n);",
        &[],
    );
    one(
        "CREATE TABLE a PARTITION OF b\n  FOR VALUES FROM (1) TO (2);\nCREATE INDEX c ON a (\n  b\n);",
        &[],
    );
}
