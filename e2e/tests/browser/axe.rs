// SPDX-License-Identifier: Apache-2.0

//! axe-core, which finds what keeps people from using a page.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The package's file.
const FILE: &str = "axe_playwright_python/axe.min.js";

/// The text of axe-core. The first time pip fetches it into a cache.
pub(crate) fn script() -> Result<String> {
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/requirements.txt");
    let target = cache()?.join("axe-0.1.8");
    let file = target.join(FILE);
    if !file.is_file() {
        let pip = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--require-hashes",
            ])
            .args([
                "--disable-pip-version-check",
                "--root-user-action",
                "ignore",
            ])
            .args(["--only-binary", ":all:", "--upgrade", "--target"])
            .arg(&target)
            .arg("-r")
            .arg(&requirements)
            .output()
            .context("pip")?;
        let said = String::from_utf8_lossy(&pip.stderr);
        ensure!(pip.status.success(), "pip: {said}");
    }
    std::fs::read_to_string(&file).with_context(|| file.display().to_string())
}

/// The cache of the tests, as `e2e/tools/build` has it.
fn cache() -> Result<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cache = of("PORTOLAN_CACHE")
        .or_else(|| of("XDG_CACHE_HOME").map(|cache| cache.join("portolan")))
        .or_else(|| of("HOME").map(|home| home.join(".cache/portolan")));
    cache.context("neither PORTOLAN_CACHE nor HOME is set")
}
