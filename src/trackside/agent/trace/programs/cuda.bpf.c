/* Counts calls of the CUDA runtime and driver by process and function: how many, how long, how many bytes.
 *
 * What each function is comes with its probe as a cookie, so that one program serves them all:
 *   bits 0-7   number of the function
 *   bits 8-11  one call in 2^n is timed; 15: none
 *   bits 12-15 position of the bytes, counted from 1; 0: none
 *   bits 16-19 position of what the bytes are multiplied with, counted from 1; 0: none
 *   bits 20-23 position of the direction, counted from 1; 0: it is fixed
 *   bits 24-27 the fixed direction
 *   bits 28-31 position of the device that is chosen, counted from 1; 0: none
 *   bit 32     whether success means that the process has a context
 */
#include "bpf.h"

#define NEVER 15
#define DIRECTIONS 8

struct cell_of {
    u32 tgid;
    u16 function;
    u16 direction;
};
struct cell {
    u64 calls;
    u64 ns;
    u64 bytes;
};
struct process {
    u64 has_context; /* when it was first seen to have one, kernel's monotonic ns */
    u64 devices;     /* bits of those it chose */
};
struct call {
    u64 thread;
    u64 function;
};
struct begun {
    u64 at;
    u64 device;
};

TABLE(cells, HASH, 16384, struct cell_of, struct cell, NO_PREALLOC);
TABLE(processes, HASH, 4096, u32, struct process, NO_PREALLOC);
TABLE(underway, HASH, 8192, struct call, struct begun, NO_PREALLOC);

INLINE u32 nibble(u64 cookie, u32 at) {
    return (cookie >> at) & 15;
}

INLINE struct cell *cell(const struct cell_of *key) {
    struct cell *found = map_get(&cells, key);
    if (found)
        return found;
    struct cell none = {};
    if (map_put(&cells, key, &none, NOEXIST) < 0) {
        found = map_get(&cells, key); /* another thread was first, or there is no room */
        if (!found)
            lose(1);
        return found;
    }
    return map_get(&cells, key);
}

/* Counts a call. Whether its return matters. */
INLINE int enters(const struct arguments *given, u64 cookie) {
    struct cell_of key = {.tgid = pid_tgid() >> 32, .function = cookie & 0xff};
    u32 size = nibble(cookie, 12), times = nibble(cookie, 16), direction = nibble(cookie, 20), shift = nibble(cookie, 8);
    if (direction) {
        u64 kind = (u32)argument(given, direction - 1);
        key.direction = kind < DIRECTIONS ? kind : DIRECTIONS - 1;
    } else {
        key.direction = nibble(cookie, 24);
    }
    struct cell *found = cell(&key);
    if (!found)
        return 0;
    add(&found->calls, 1);
    if (size) {
        u64 bytes = argument(given, size - 1);
        if (times)
            bytes *= argument(given, times - 1);
        add(&found->bytes, bytes);
    }
    return shift != NEVER && (random_u32() & ((1U << shift) - 1)) == 0;
}

INLINE void note_context(u32 tgid, u64 device) {
    struct process *found = map_get(&processes, &tgid);
    u64 bits = device < 64 ? 1ULL << device : 0;
    if (found) {
        if ((found->devices | bits) != found->devices)
            found->devices |= bits;
        return;
    }
    struct process first = {.has_context = now_ns(), .devices = bits};
    if (map_put(&processes, &tgid, &first, ANY) < 0)
        lose(1);
}

INLINE u64 device_of(const struct arguments *given, u64 cookie) {
    u32 position = nibble(cookie, 28);
    return position ? (u32)argument(given, position - 1) : 64;
}

INLINE void leaves(struct regs *ctx, u64 cookie, u64 began, u64 device) {
    u64 id = pid_tgid();
    struct cell_of key = {.tgid = id >> 32, .function = cookie & 0xff};
    if (!nibble(cookie, 20))
        key.direction = nibble(cookie, 24);
    struct cell *found = cell(&key); /* time of all directions is kept in one */
    if (found)
        add(&found->ns, (now_ns() - began) << nibble(cookie, 8));
    if ((cookie >> 32 & 1) && (u32)RESULT(ctx) == 0)
        note_context(id >> 32, device);
}

SEC("uprobe")
int session(struct regs *ctx) {
    u64 cookie = cookie_of(ctx), *kept = bpf_session_cookie();
    if (bpf_session_is_return()) {
        leaves(ctx, cookie, *kept >> 7, *kept & 127);
        return 0;
    }
    struct arguments given;
    take(ctx, &given);
    if (!enters(&given, cookie))
        return WITHOUT_RETURN;
    u64 device = device_of(&given, cookie);
    *kept = now_ns() << 7 | (device < 64 ? device : 64);
    return WITH_RETURN;
}

SEC("uprobe")
int entry(struct regs *ctx) {
    u64 cookie = cookie_of(ctx);
    struct arguments given;
    take(ctx, &given);
    if (!enters(&given, cookie))
        return 0;
    struct call call = {.thread = pid_tgid(), .function = cookie & 0xff};
    struct begun begun = {.at = now_ns(), .device = device_of(&given, cookie)};
    if (map_put(&underway, &call, &begun, ANY) < 0)
        lose(1);
    return 0;
}

SEC("uprobe")
int leave(struct regs *ctx) {
    u64 cookie = cookie_of(ctx);
    struct call call = {.thread = pid_tgid(), .function = cookie & 0xff};
    struct begun *begun = map_get(&underway, &call);
    if (!begun)
        return 0;
    leaves(ctx, cookie, begun->at, begun->device);
    map_drop(&underway, &call);
    return 0;
}

LICENSED;
