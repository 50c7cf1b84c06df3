// SPDX-License-Identifier: Apache-2.0

//! Probes of backends.

#![forbid(unsafe_code)]
