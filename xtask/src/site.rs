//! `cargo xtask docs`: static site with documents, docstrings and rustdoc.
//!
//! The site opens without a server, has a search, and loads nothing from other hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use regex::Regex;

use crate::command::{cargo, output, root, step, target_folder};
use crate::{install, python};

/// Files of the repository that are pages, and files to which pages link.
const SOURCES: [&str; 8] = [
    "*.md",
    "docs/*.svg",
    "docs/*.png",
    "LICENSE-*",
    "examples",
    "crates/*/examples/*",
    "xtask/site",
    // Links to pages in `docs`.
    ":(exclude)crates/launch/cli/docs",
];

/// Builds the site in `target/site/site` and checks its links.
pub(crate) fn run() -> anyhow::Result<()> {
    let site = documents()?;
    python::document(&site.join("python"))?;
    let crates = target_folder()?.join("doc");
    // Earlier runs, such as `cargo xtask ci`, left pages of private items there.
    if crates.exists() {
        fs::remove_dir_all(&crates)?;
    }
    let mut rustdoc = cargo();
    rustdoc.args(["doc", "--workspace", "--no-deps", "--locked"]);
    step("documentation of the crates", &mut rustdoc)?;
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(crates).arg(site.join("rust"));
    step("copy of the documentation", &mut copy)?;
    // pdoc links to members of a base class from PyTorch, which has no page.
    check_links(&site, &["#PyStore."])?;
    println!("\nthe site: {}", site.join("index.html").display());
    Ok(())
}

/// Builds only the pages of the documents and checks their links.
pub(crate) fn check() -> anyhow::Result<()> {
    check_links(&documents()?, &["../../python/", "../../rust/"])
}

/// Builds the pages of the documents. Returns their folder.
fn documents() -> anyhow::Result<PathBuf> {
    let work = target_folder()?.join("site");
    let (source, built) = (work.join("source"), work.join("site"));
    if work.exists() {
        fs::remove_dir_all(&work)?;
    }
    let mut tracked = Command::new("git");
    tracked.current_dir(root()).arg("ls-files").args(SOURCES);
    for file in output(&mut tracked)?.lines() {
        let copy = source.join(file);
        fs::create_dir_all(copy.parent().context("a file without a folder")?)?;
        fs::copy(root().join(file), copy)?;
    }
    let configuration = source.join("xtask/site/zensical.toml");
    fs::copy(configuration, work.join("zensical.toml"))?;
    let mut zensical = Command::new(install::tool("zensical")?);
    step(
        "pages",
        zensical.current_dir(&work).args(["build", "--strict"]),
    )?;

    // This page is for a server: its links begin at the root of the site.
    fs::remove_file(built.join("404.html"))?;
    Ok(built)
}

/// Fails if a link is dead, except for links that begin with one of `absent`.
fn check_links(site: &Path, absent: &[&str]) -> anyhow::Result<()> {
    let mut dead = dead_links(site)?;
    dead.retain(|(_, address)| !absent.iter().any(|start| address.starts_with(start)));
    ensure!(dead.is_empty(), "dead links: {dead:#?}");
    Ok(())
}

/// Returns the dead links in the pages below `site`, except those of rustdoc.
///
/// A link is dead if its file or anchor does not exist. A resource that a page loads from another
/// host counts as dead too.
fn dead_links(site: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let link = Regex::new(r#"<(\w+)[^>]*?\s(?:href|src)="([^"]*)""#)?;
    let mut dead = Vec::new();
    for page in pages(site)? {
        let text = fs::read_to_string(&page)?;
        for found in link.captures_iter(&text) {
            let (tag, address) = (&found[1], &found[2]);
            let is_elsewhere = address.contains("://") || address.starts_with("mailto:");
            let (path, anchor) = address.split_once('#').unwrap_or((address, ""));
            let file = match path {
                "" => page.clone(),
                path => page
                    .with_file_name("")
                    .join(path.split('?').next().unwrap_or(path)),
            };
            let is_dead = if is_elsewhere {
                tag != "a"
            } else if path.ends_with(".html") || path.is_empty() {
                !fs::read_to_string(file).is_ok_and(|text| has_anchor(&text, anchor))
            } else {
                !file.exists()
            };
            // The script of pdoc contains a template of a link.
            if is_dead && !address.starts_with("data:") && address != "${url}" {
                dead.push((page.clone(), address.to_owned()));
            }
        }
    }
    Ok(dead)
}

/// `true` if the anchor is empty, or the page has an element with this `id`.
fn has_anchor(page: &str, anchor: &str) -> bool {
    anchor.is_empty() || page.contains(&format!("id=\"{anchor}\""))
}

/// Returns the HTML files below `folder`, except those of rustdoc.
fn pages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("rust") {
            pages.extend(self::pages(&path)?);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            pages.push(path);
        }
    }
    Ok(pages)
}
