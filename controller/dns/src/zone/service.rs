// SPDX-License-Identifier: Apache-2.0

//! One Service of a zone: its objects and the compiled records.

use std::collections::BTreeMap;

use super::Applied;
use super::reverse::Reverse;
use crate::compile::{compile, compile_alone, matching};
use crate::config::ZoneConfig;
use crate::input::{Service, ServiceKey, Slice, Subject};
use crate::problem::RecordProblem;
use crate::records::{RecordSet, ServiceRecords};

#[derive(Debug, Clone, Default)]
pub(super) struct ServiceEntry {
    /// `None` while only slices of it are known: they may come first.
    pub(super) service: Option<Service>,
    pub(super) slices: BTreeMap<String, Slice>,
    pub(super) records: ServiceRecords,
    pub(super) problems: Vec<RecordProblem>,
}

impl ServiceEntry {
    pub(super) fn is_unused(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }

    /// The records of all ports with this name and protocol; an empty one matches any.
    pub(super) fn matching(
        &self,
        port: &str,
        protocol: &str,
        config: &ZoneConfig,
    ) -> Option<RecordSet> {
        let service = self.service.as_ref()?;
        matching(service, self.slices.values(), config, port, protocol)
    }

    /// Brings records and PTR records up to date.
    pub(super) fn recompile(
        &mut self,
        key: &ServiceKey,
        config: &ZoneConfig,
        reverse: &mut Reverse,
        out: &mut Applied,
    ) {
        let (records, problems) = match &self.service {
            Some(service) => compile(service, self.slices.values(), config),
            None => {
                let records = compile_alone(key, self.slices.values(), config);
                (records, Vec::new())
            }
        };
        let news = problems
            .iter()
            .filter(|problem| !self.problems.contains(problem));
        out.problems.extend(news.cloned());
        self.problems = problems;
        if records == self.records {
            return;
        }
        let moved = reverse.replace(&self.records.pointers, &records.pointers);
        out.subjects.extend(moved.into_iter().map(Subject::Address));
        if !records.same_names(&self.records) {
            out.subjects.insert(Subject::Service(key.clone()));
            if config.name_server.as_ref() == Some(key) {
                out.subjects.insert(Subject::Apex);
            }
        }
        self.records = records;
    }
}
