//! What we depend on: whether every package in `Cargo.lock` has a licence that `deny.toml` allows,
//! comes from a registry that it allows, and is none that it bans.
//!
//! `deny.toml` is cargo-deny's own file. Compiling cargo-deny takes minutes, so this step checks
//! what matters by itself, and runs cargo-deny as well where it is installed.

use crate::{cargo, root, run_to_end, succeeds};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::iter::Peekable;

/// Checks the repository.
pub fn run() -> Result<()> {
    let text = fs::read_to_string(root()?.join("deny.toml")).context("could not read deny.toml")?;
    let policy = Policy::parse(&text)?;
    let packages = parse_packages(&read_metadata()?)?;
    let findings: Vec<String> = packages.iter().flat_map(|p| policy.findings(p)).collect();
    if !findings.is_empty() {
        bail!("deny.toml does not allow\n{}", findings.join("\n"));
    }
    println!("deny.toml allows all {} packages", packages.len());
    if succeeds(cargo()?.args(["deny", "--version"])) {
        let check = ["deny", "--all-features", "--offline", "check", "licenses", "bans", "sources"];
        run_to_end(cargo()?.args(check))
    } else {
        println!("cargo-deny is not installed; it was not run");
        Ok(())
    }
}

/// Every package of the lock file, for every platform and with every feature.
fn read_metadata() -> Result<Value> {
    let mut command = cargo()?;
    command.args(["metadata", "--format-version", "1", "--locked", "--all-features"]);
    let output = command.output().context("could not start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed\n{}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("could not read what cargo metadata printed")
}

/// A package as far as the policy looks at it.
struct Package {
    name: String,
    licence: Option<String>,
    /// `None` for a path.
    source: Option<String>,
    is_ours: bool,
}

fn parse_packages(metadata: &Value) -> Result<Vec<Package>> {
    let members = metadata["workspace_members"].as_array().context("no workspace members")?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let parse = |package: &Value| {
        Some(Package {
            name: format!("{} {}", package["name"].as_str()?, package["version"].as_str()?),
            licence: text(&package["license"]),
            source: text(&package["source"]),
            is_ours: members.contains(&package["id"]),
        })
    };
    packages.iter().map(|p| parse(p).context("a package without a name")).collect()
}

/// What `deny.toml` says.
struct Policy {
    licences: BTreeSet<String>,
    registries: BTreeSet<String>,
    banned: BTreeSet<String>,
}

impl Policy {
    fn parse(text: &str) -> Result<Self> {
        let file: toml::Table = text.parse().context("deny.toml is not TOML")?;
        let list = |section: &str, name: &str| -> Result<&Vec<toml::Value>> {
            let value = file.get(section).and_then(|section| section.get(name));
            let list = value.and_then(toml::Value::as_array).filter(|list| !list.is_empty());
            list.with_context(|| format!("deny.toml has no list {section}.{name}"))
        };
        let texts = |values: &[toml::Value]| -> Option<BTreeSet<String>> {
            values.iter().map(|value| Some(value.as_str()?.to_owned())).collect()
        };
        let licences = texts(list("licenses", "allow")?).context("licenses.allow: not texts")?;
        let registries = texts(list("sources", "allow-registry")?)
            .context("sources.allow-registry: no texts")?;
        let name = |ban: &toml::Value| Some(ban.get("name")?.as_str()?.to_owned());
        let banned: Option<BTreeSet<String>> = list("bans", "deny")?.iter().map(name).collect();
        let banned = banned.context("bans.deny: an entry without a name")?;
        Ok(Self { licences, registries, banned })
    }

    /// What is wrong with a package, a sentence each.
    fn findings(&self, package: &Package) -> Vec<String> {
        let Package { name, licence, source, is_ours } = package;
        let mut findings = Vec::new();
        match licence.as_deref().map(|expression| (expression, self.allows(expression))) {
            Some((_, Some(true))) => {}
            Some((expression, Some(false))) => {
                findings.push(format!("{name}: the licence {expression} is not allowed"));
            }
            Some((expression, None)) => {
                findings.push(format!("{name}: {expression:?} is not a licence expression"));
            }
            None => findings.push(format!("{name} names no licence")),
        }
        let registry = source.as_deref().and_then(|source| source.strip_prefix("registry+"));
        if !is_ours && !registry.is_some_and(|registry| self.registries.contains(registry)) {
            let source = source.as_deref().unwrap_or("a path outside the workspace");
            findings.push(format!("{name} comes from {source}"));
        }
        if name.split(' ').next().is_some_and(|name| self.banned.contains(name)) {
            findings.push(format!("{name} is banned"));
        }
        findings
    }

    /// Whether the licences that are allowed satisfy an SPDX expression; `None` if it is none.
    fn allows(&self, expression: &str) -> Option<bool> {
        // Older packages separate alternatives with a slash.
        let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let mut words = spaced.split_whitespace().peekable();
        let allowed = self.any_of(&mut words)?;
        words.next().is_none().then_some(allowed)
    }

    fn any_of<'a>(&self, words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Option<bool> {
        let mut allowed = self.all_of(words)?;
        while words.next_if_eq(&"OR").is_some() {
            allowed |= self.all_of(words)?;
        }
        Some(allowed)
    }

    fn all_of<'a>(&self, words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Option<bool> {
        let mut allowed = self.one(words)?;
        while words.next_if_eq(&"AND").is_some() {
            allowed &= self.one(words)?;
        }
        Some(allowed)
    }

    /// A licence, with its exception if it has one, or an expression in parentheses.
    fn one<'a>(&self, words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Option<bool> {
        match words.next()? {
            "OR" | "AND" | "WITH" | ")" => None,
            "(" => {
                let allowed = self.any_of(words)?;
                words.next_if_eq(&")").map(|_| allowed)
            }
            licence if words.next_if_eq(&"WITH").is_some() => {
                Some(self.licences.contains(&format!("{licence} WITH {}", words.next()?)))
            }
            licence => Some(self.licences.contains(licence)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";
    const POLICY: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0", "ISC", "Apache-2.0 WITH LLVM-exception"]
        [bans]
        deny = [{ name = "openssl" }, { name = "native-tls", reason = "one TLS is enough" }]
        [sources]
        allow-registry = ["https://github.com/rust-lang/crates.io-index"]
    "#;

    #[test]
    fn licence_expressions() {
        let policy = Policy::parse(POLICY).unwrap();
        let check = |expression: &str, expected: Option<bool>| {
            assert_eq!(policy.allows(expression), expected, "{expression}");
        };
        check("MIT", Some(true));
        check("GPL-3.0-only", Some(false));
        check("mit", Some(false));
        check("MIT OR GPL-3.0-only", Some(true));
        check("GPL-3.0-only OR MIT", Some(true));
        check("MIT AND GPL-3.0-only", Some(false));
        check("Apache-2.0 AND ISC", Some(true));
        check("MIT/GPL-2.0", Some(true));
        check("GPL-2.0/LGPL-2.1", Some(false));
        check("(MIT OR GPL-2.0) AND ISC", Some(true));
        check("(MIT OR ISC) AND GPL-2.0", Some(false));
        check("GPL-2.0 OR (ISC AND (MIT OR BSL-1.0))", Some(true));
        // AND binds more tightly than OR.
        check("MIT OR ISC AND GPL-2.0", Some(true));
        check("GPL-2.0 AND MIT OR GPL-2.0", Some(false));
        check("Apache-2.0 WITH LLVM-exception", Some(true));
        check("MIT WITH LLVM-exception", Some(false));
        check("Apache-2.0 WITH LLVM-exception OR GPL-2.0", Some(true));
        for none in ["", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT ISC", "MIT WITH", "()"] {
            check(none, None);
        }
    }

    /// The findings about one package of crates.io after a change of its metadata.
    fn findings(field: &str, value: Value) -> Vec<String> {
        let mut package = json!({
            "id": "registry#a@1.0.0", "name": "a", "version": "1.0.0", "license": "MIT",
            "source": CRATES_IO,
        });
        package[field] = value;
        let metadata = json!({"packages": [package], "workspace_members": ["path#own@0.1.0"]});
        let policy = Policy::parse(POLICY).unwrap();
        parse_packages(&metadata).unwrap().iter().flat_map(|p| policy.findings(p)).collect()
    }

    #[test]
    fn planted_packages() {
        assert_eq!(findings("license", json!("MIT")), Vec::<String>::new());
        let found = |field: &str, value: Value, expected: &str| {
            assert_eq!(findings(field, value), [expected]);
        };
        found("license", json!("AGPL-3.0"), "a 1.0.0: the licence AGPL-3.0 is not allowed");
        found("license", json!("MIT OR"), "a 1.0.0: \"MIT OR\" is not a licence expression");
        found("license", Value::Null, "a 1.0.0 names no licence");
        let git = "git+https://example.com/a#0123456";
        found("source", json!(git), &format!("a 1.0.0 comes from {git}"));
        let registry = "registry+https://example.com/index";
        found("source", json!(registry), &format!("a 1.0.0 comes from {registry}"));
        found("source", Value::Null, "a 1.0.0 comes from a path outside the workspace");
        found("name", json!("openssl"), "openssl 1.0.0 is banned");
        found("name", json!("native-tls"), "native-tls 1.0.0 is banned");
        assert_eq!(findings("name", json!("openssl-probe")), Vec::<String>::new());
    }

    #[test]
    fn our_own_packages_come_from_paths() {
        let metadata = json!({
            "packages": [{
                "id": "path#own@0.1.0", "name": "own", "version": "0.1.0",
                "license": "Apache-2.0", "source": null,
            }],
            "workspace_members": ["path#own@0.1.0"],
        });
        let policy = Policy::parse(POLICY).unwrap();
        let packages = parse_packages(&metadata).unwrap();
        assert_eq!(packages.len(), 1);
        assert_eq!(policy.findings(&packages[0]), Vec::<String>::new());
    }

    /// A list that is misspelt must not pass for a list that bans nothing.
    #[test]
    fn a_policy_without_a_list_is_refused() {
        for (from, to) in
            [("[licenses]", "[licences]"), ("deny =", "denied ="), ("allow-registry", "registry")]
        {
            assert!(Policy::parse(&POLICY.replace(from, to)).is_err(), "{to}");
        }
        assert!(Policy::parse(&POLICY.replace("{ name = \"openssl\" }", "{}")).is_err());
    }

    #[test]
    fn the_policy_of_this_repository_can_be_read() {
        let text = fs::read_to_string(root().unwrap().join("deny.toml")).unwrap();
        let policy = Policy::parse(&text).unwrap();
        assert!(policy.banned.contains("openssl") && policy.banned.contains("native-tls"));
    }
}
