// SPDX-License-Identifier: Apache-2.0

//! The serving certificate, which exists in memory only. No I/O, no clock.

use std::ops::Range;
use std::time::SystemTime;

use portolan_tls::issue::{IssueError, Issued};

use super::content::{Authorities, BACKDATED, DAY, two_thirds};

/// A serving certificate.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) issued: Issued,
    /// Certificate of the authority that signed it.
    signer: String,
    valid: Range<SystemTime>,
}

impl Leaf {
    /// Signs a certificate for these names. It does not outlive the authority.
    pub(super) fn sign(
        authorities: &Authorities,
        names: &[String],
        days: u32,
        now: SystemTime,
    ) -> Result<Self, IssueError> {
        let end = (now + DAY * days).min(authorities.expires());
        let valid = now - BACKDATED..end;
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let signer = authorities.signer();
        Ok(Self {
            issued: signer.server(&names, valid.clone())?,
            signer: signer.cert().to_owned(),
            valid,
        })
    }

    /// Returns `true` if it serves on: signed by the authority of now, in the first two thirds of
    /// its life. One that was signed while the clock was ahead may not be valid yet, and agents refuse it.
    pub(super) fn is_fresh(&self, authorities: &Authorities, now: SystemTime) -> bool {
        let fresh = self.valid.start..two_thirds(&self.valid);
        self.signer == authorities.signer().cert() && fresh.contains(&now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::super::content::{Data, Verdict, decide};
    use super::*;

    fn settled(data: &mut Data, now: SystemTime) -> Box<Authorities> {
        loop {
            match decide(data, now, 300).unwrap() {
                Verdict::Use(authorities) => return authorities,
                Verdict::Write(_, written) => *data = written,
            }
        }
    }

    #[test]
    fn a_certificate_is_renewed_in_time_and_with_its_authority() {
        let start = UNIX_EPOCH + DAY * 20_000;
        let names = [
            "portolan.kube-system.svc".to_owned(),
            "192.0.2.1".to_owned(),
        ];
        let mut data = Data::new();
        let first = settled(&mut data, start);
        let leaf = Leaf::sign(&first, &names, 90, start).unwrap();
        assert!(leaf.is_fresh(&first, start + DAY * 59));
        assert!(!leaf.is_fresh(&first, start + DAY * 61));

        let announced = settled(&mut data, start + DAY * 200 + BACKDATED);
        let leaf = Leaf::sign(&announced, &names, 90, start + DAY * 200).unwrap();
        assert!(leaf.is_fresh(&announced, start + DAY * 201));
        let promoted = settled(&mut data, start + DAY * 202);
        assert!(!leaf.is_fresh(&promoted, start + DAY * 202));

        let last = Leaf::sign(&first, &names, 90, start + DAY * 290).unwrap();
        assert_eq!(last.valid.end, first.expires());
    }

    #[test]
    fn a_certificate_that_is_not_valid_yet_is_not_fresh() {
        let start = UNIX_EPOCH + DAY * 20_000;
        let ahead = start + DAY * 3;
        let names = ["portolan.kube-system.svc".to_owned()];
        let authorities = settled(&mut Data::new(), start);
        let leaf = Leaf::sign(&authorities, &names, 90, ahead).unwrap();
        assert!(!leaf.is_fresh(&authorities, start));
        assert!(leaf.is_fresh(&authorities, ahead));
    }
}
