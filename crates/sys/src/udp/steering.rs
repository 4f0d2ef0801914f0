//! Steering: selects the worker's socket for a datagram by the client in its PROXY header.
//!
//! The kernel's own hash is of the balancer's address, so that one client behind two balancers,
//! or behind one that changes its port, would reach two workers, and both would bind the client's
//! address and port. A classic BPF program (SO_ATTACH_REUSEPORT_CBPF, since Linux 4.6)
//! reads the client from the header instead. The program sees the datagram from the first byte of its payload,
//! and returns the index of a worker, or an index that no worker has: then the kernel chooses by its own hash.

use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd};

use crate::error::checked;
use crate::{NameCall, Result};

/// Steers PROXY protocol v2 datagrams among the sockets that share this one's address, in the order
/// in which they were bound. All of them must be bound.
///
/// # Errors
///
/// ENOPROTOOPT before Linux 4.6; EINVAL for a socket without SO_REUSEPORT.
pub fn steer_by_proxy_v2(socket: impl AsFd, workers: u32) -> Result<()> {
    attach(socket, &proxy_v2(workers))
}

/// As [`steer_by_proxy_v2`], for datagrams of the Simple Proxy Protocol.
pub fn steer_by_spp(socket: impl AsFd, workers: u32) -> Result<()> {
    attach(socket, &spp(workers))
}

fn attach(socket: impl AsFd, program: &[libc::sock_filter]) -> Result<()> {
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the option's value is a sock_fprog; its filter is `len` instructions that the kernel
    // copies before the call returns.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    checked(rc)
        .map(drop)
        .call("setsockopt(SO_ATTACH_REUSEPORT_CBPF)")
}

/// The program for PROXY v2: a header of 16 bytes, the client's address and the proxy's, then the ports.
///
/// A client has one hash, whether its address is IPv4 or IPv4-mapped IPv6: the four words of an
/// IPv6 address are XORed, which for a mapped one yields its IPv4 address XOR 0xffff; an
/// IPv4 address is XORed with 0xffff, too.
fn proxy_v2(workers: u32) -> Vec<libc::sock_filter> {
    let v4 = [
        &[
            load_word(16),
            op(XOR_K, 0xffff),
            op(STORE, 0),
            load_half(24),
        ][..],
        &select_worker(workers),
    ]
    .concat();
    let v6 = [
        &[op(LOAD_LEN, 0)][..],
        &require(AT_LEAST, 52),
        &xor_words(16),
        &[load_half(48)],
        &select_worker(workers),
    ]
    .concat();
    [
        &[op(LOAD_LEN, 0)][..],
        &require(AT_LEAST, 28),
        // The start of the signature.
        &[load_word(0)],
        &require(EQUAL, 0x0d0a_0d0a),
        // Version 2, PROXY. LOCAL (0x20) has no client: its sessions are keyed by the balancer's address.
        &[load_byte(12)],
        &require(EQUAL, 0x21),
        // The family: AF_INET6 skips the next check and `v4`.
        &[load_byte(13), op(AND_K, 0xf0)],
        &[skip_if(EQUAL, 0x20, CHECK_LEN + v4.len())],
        &require(EQUAL, 0x10),
        &v4,
        &v6,
    ]
    .concat()
}

/// The program for the Simple Proxy Protocol, whose header is the same for both families: two bytes of magic, the addresses of
/// client and proxy with 16 bytes each, the ports.
fn spp(workers: u32) -> Vec<libc::sock_filter> {
    [
        &[op(LOAD_LEN, 0)][..],
        &require(AT_LEAST, 38),
        &[load_half(0)],
        &require(EQUAL, 0x56ec),
        &xor_words(2),
        &[load_half(34)],
        &select_worker(workers),
    ]
    .concat()
}

/// Continues if the comparison of the accumulator with `value` holds, else leaves the choice to the kernel.
fn require(comparison: u32, value: u32) -> [libc::sock_filter; CHECK_LEN] {
    [skip_if(comparison, value, 1), op(RETURN_K, KERNEL_CHOOSES)]
}

/// XORs the four words of the IPv6 address at `offset` into scratch memory.
fn xor_words(offset: u32) -> Vec<libc::sock_filter> {
    let mut program = vec![load_word(offset)];
    for word in 1..4 {
        program.extend([
            op(STORE, 0),
            load_word(offset + 4 * word),
            op(LOAD_X, 0),
            op(XOR_X, 0),
        ]);
    }
    program.push(op(STORE, 0));
    program
}

/// Hashes the port in the accumulator and the address in scratch memory, and returns the index of a worker.
fn select_worker(workers: u32) -> [libc::sock_filter; 6] {
    [
        op(LOAD_X, 0),
        op(XOR_X, 0),
        op(MULTIPLY_K, SPREAD),
        op(SHIFT_RIGHT_K, 16),
        op(MODULO_K, workers.max(1)),
        op(RETURN_A, 0),
    ]
}

fn load_word(offset: u32) -> libc::sock_filter {
    op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

fn load_half(offset: u32) -> libc::sock_filter {
    op(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, offset)
}

fn load_byte(offset: u32) -> libc::sock_filter {
    op(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset)
}

fn skip_if(comparison: u32, value: u32, instructions: usize) -> libc::sock_filter {
    libc::sock_filter {
        jt: instructions as u8,
        ..op(libc::BPF_JMP | libc::BPF_K | comparison, value)
    }
}

fn op(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

const LOAD_LEN: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
const LOAD_X: u32 = libc::BPF_LDX | libc::BPF_MEM;
const STORE: u32 = libc::BPF_ST;
const XOR_K: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_K;
const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
const AND_K: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const MULTIPLY_K: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
const SHIFT_RIGHT_K: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const MODULO_K: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
const RETURN_K: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_A: u32 = libc::BPF_RET | libc::BPF_A;
const AT_LEAST: u32 = libc::BPF_JGE;
const EQUAL: u32 = libc::BPF_JEQ;
/// The instructions of [`require`].
const CHECK_LEN: usize = 2;
/// No worker has this index, so the kernel chooses.
const KERNEL_CHOOSES: u32 = u32::MAX;
/// Fibonacci hashing, 2^32 divided by the golden ratio: spreads neighbouring values (Knuth, volume 3, 6.4).
const SPREAD: u32 = 0x9e37_79b1;
