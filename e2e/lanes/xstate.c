// SPDX-License-Identifier: Apache-2.0
//
// A library that e2e/lanes/uml loads into User Mode Linux, so that it runs on processors with more register state
// than it has room for.
//
// User Mode Linux before 6.13 keeps 2,696 bytes of a process's extended state: all up to AVX-512. The machine's
// kernel takes a state back in its full length only (xstateregs_set in arch/x86/kernel/fpu/regset.c), which is
// 11,008 bytes on processors with AMX: the guest aborts at its first process (put_fp_registers). Here a state is
// read as before, and written in its full length: what the guest does not keep is in its initial state. No program
// can use AMX in the guest, since it has no arch_prctl to ask for it.

#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// Static, because the stack of the guest's kernel is small. One thread of the guest calls ptrace.
static uint8_t state[1 << 16] __attribute__((aligned(64)));
// Length of the machine's state; 0 before the first one is read.
static size_t full;

// Places in the standard format of XSAVE (Intel SDM, volume 1, chapter 13).
enum { COMPONENTS_PRESENT = 512 };
// Bits of components 17 and 18, of AMX. Their data begins beyond what the guest keeps.
static const uint64_t AMX = UINT64_C(3) << 17;

static long call(long request, long process, void *address, void *data) {
    return syscall(SYS_ptrace, request, process, address, data);
}

static long read_state(long process, void *kind, struct iovec *theirs) {
    struct iovec ours = {state, sizeof state};
    long result = call(PTRACE_GETREGSET, process, kind, &ours);
    if (result < 0) return result;
    full = ours.iov_len;
    if (theirs->iov_len > full) theirs->iov_len = full;
    memcpy(theirs->iov_base, state, theirs->iov_len);
    return result;
}

static long write_state(long process, void *kind, struct iovec *theirs) {
    if (theirs->iov_len >= full) return call(PTRACE_SETREGSET, process, kind, theirs);
    uint64_t present;
    memset(state, 0, full);
    memcpy(state, theirs->iov_base, theirs->iov_len);
    memcpy(&present, state + COMPONENTS_PRESENT, sizeof present);
    present &= ~AMX;
    memcpy(state + COMPONENTS_PRESENT, &present, sizeof present);
    struct iovec ours = {state, full};
    return call(PTRACE_SETREGSET, process, kind, &ours);
}

// In place of the C library's.
long ptrace(enum __ptrace_request request, ...) {
    va_list arguments;
    va_start(arguments, request);
    long process = va_arg(arguments, pid_t);
    void *address = va_arg(arguments, void *);
    void *data = va_arg(arguments, void *);
    va_end(arguments);
    if ((uintptr_t)address == NT_X86_XSTATE) {
        if (request == PTRACE_GETREGSET) return read_state(process, address, data);
        if (request == PTRACE_SETREGSET) return write_state(process, address, data);
    }
    long value;
    // The system call stores what the C library returns (ptrace(2), "C library/kernel differences").
    int peeks = request == PTRACE_PEEKTEXT || request == PTRACE_PEEKDATA || request == PTRACE_PEEKUSER;
    long result = call(request, process, address, peeks ? &value : data);
    if (peeks && result == 0) {
        errno = 0;
        return value;
    }
    return result;
}
