// SPDX-License-Identifier: Apache-2.0

//! The limit of open file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open file descriptors to the hard limit (`RLIMIT_NOFILE`), and returns the
/// limit in force; `None` if there is none.
///
/// The usual soft limit of 1,024 exists for programs that use `select(2)`.
pub fn raise_descriptor_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // Slightly lower: other tests of this process need descriptors too.
        let lowered = Rlimit {
            current: Some(maximum.map_or(1 << 20, |maximum| maximum - 1)),
            maximum,
        };
        setrlimit(Resource::Nofile, lowered).unwrap();
        assert_eq!(raise_descriptor_limit(), maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
