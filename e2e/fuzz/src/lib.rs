// SPDX-License-Identifier: Apache-2.0

//! Fuzz targets of the agent's, the controller's, edges' and DNS's decoders, and of the parsers and importers
//! of files.
//!
//! A target takes bytes and panics if an invariant is violated. `e2e/fuzz/run` builds the targets
//! with coverage for libFuzzer. Without coverage their programs replay files, and a test replays
//! the corpus.

pub mod agent;
pub mod controller;
pub mod dns;
pub mod edge;
pub mod files;
pub mod input;
pub mod seeds;

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Replays the inputs that earlier fuzzing kept; see `e2e/fuzz/run --keep`.
    fn replay(target: &str, check: impl Fn(&[u8])) {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("corpus")
            .join(target);
        let inputs: Vec<_> = std::fs::read_dir(&directory).unwrap().collect();
        assert!(
            inputs.len() > 10,
            "{} has {} inputs",
            directory.display(),
            inputs.len()
        );
        for input in inputs {
            check(&std::fs::read(input.unwrap().path()).unwrap());
        }
    }

    #[test]
    fn the_agent_holds_against_its_corpus() {
        replay("agent", |input| {
            crate::agent::check(input);
        });
    }

    #[test]
    fn the_controller_holds_against_its_corpus() {
        replay("controller", |input| {
            crate::controller::check(input);
        });
    }

    #[test]
    fn dns_holds_against_its_corpus() {
        replay("dns", |input| {
            crate::dns::check(input);
        });
    }

    #[test]
    fn edges_hold_against_their_corpus() {
        replay("edge", |input| {
            crate::edge::check(input);
        });
    }

    #[test]
    fn files_of_a_director_hold_against_their_corpus() {
        replay("director", |input| {
            crate::files::director::check(input);
        });
    }

    #[test]
    fn importers_hold_against_their_corpus() {
        replay("import", |input| {
            crate::files::import::check(input);
        });
    }

    #[test]
    fn policies_hold_against_their_corpus() {
        replay("policy", |input| {
            crate::files::policy::check(input);
        });
    }
}
