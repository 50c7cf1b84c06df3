// SPDX-License-Identifier: Apache-2.0

//! The process's heap.

/// Makes all threads share one heap, that of the main thread.
///
/// By default each thread of a process has a heap of its own with the GNU C library. Such a heap grows by a page and a
/// system call at a time (`sysmalloc`, `grow_heap`), and memory that one thread freed serves no other.
/// A program that allocates much on few threads is quicker and smaller with one heap. Other C libraries
/// have one heap, and nothing changes there.
pub fn share_heap() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the standard library has no such setting")]
    // SAFETY: `mallopt` takes two numbers and no pointer, and may be called at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
