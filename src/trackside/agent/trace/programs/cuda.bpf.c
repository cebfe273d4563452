/* Counts calls of the CUDA runtime and driver by process and function: calls, time and bytes.
 *
 * The probe's cookie describes the function, so that one program serves all:
 *   bits 0-7   number of the function
 *   bits 8-11  n: one call in 2^n is timed; 15: none
 *   bits 12-15 position of the number of bytes, counted from 1; 0: none
 *   bits 16-19 position of a factor of the bytes, counted from 1; 0: none
 *   bits 20-23 position of the direction, counted from 1; 0: fixed
 *   bits 24-27 the fixed direction
 *   bits 28-31 position of the selected device, counted from 1; 0: none
 *   bit 32     whether success means that the process has a context
 */
#include "bpf.h"

#define UNTIMED 15
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
    u64 has_context; /* time of its first context, monotonic ns */
    u64 devices;     /* bits of the selected ones */
};
struct call {
    u64 thread;
    u64 function;
};
struct start {
    u64 at;
    u64 device;
};

TABLE(cells, HASH, 16384, struct cell_of, struct cell, NO_PREALLOC);
TABLE(processes, HASH, 4096, u32, struct process, NO_PREALLOC);
TABLE(underway, HASH, 8192, struct call, struct start, NO_PREALLOC);

INLINE u32 nibble(u64 cookie, u32 at) {
    return (cookie >> at) & 15;
}

INLINE struct cell *cell(const struct cell_of *key) {
    struct cell *value = map_get(&cells, key);
    if (value)
        return value;
    struct cell none = {};
    if (map_put(&cells, key, &none, NOEXIST) < 0) {
        value = map_get(&cells, key); /* another thread was first, or the map is full */
        if (!value)
            lose(1);
        return value;
    }
    return map_get(&cells, key);
}

/* Counts a call. Returns whether to probe its return too. */
INLINE int enters(const struct arguments *args, u64 cookie) {
    struct cell_of key = {.tgid = pid_tgid() >> 32, .function = cookie & 0xff};
    u32 size = nibble(cookie, 12), times = nibble(cookie, 16), direction = nibble(cookie, 20), shift = nibble(cookie, 8);
    if (direction) {
        u64 kind = (u32)argument(args, direction - 1);
        key.direction = kind < DIRECTIONS ? kind : DIRECTIONS - 1;
    } else {
        key.direction = nibble(cookie, 24);
    }
    struct cell *value = cell(&key);
    if (!value)
        return 0;
    add(&value->calls, 1);
    if (size) {
        u64 bytes = argument(args, size - 1);
        if (times)
            bytes *= argument(args, times - 1);
        add(&value->bytes, bytes);
    }
    return shift != UNTIMED && (random_u32() & ((1U << shift) - 1)) == 0;
}

INLINE void note_context(u32 tgid, u64 device) {
    struct process *value = map_get(&processes, &tgid);
    u64 bits = device < 64 ? 1ULL << device : 0;
    if (value) {
        if ((value->devices | bits) != value->devices)
            value->devices |= bits;
        return;
    }
    struct process first = {.has_context = now_ns(), .devices = bits};
    if (map_put(&processes, &tgid, &first, ANY) < 0)
        lose(1);
}

INLINE u64 device_of(const struct arguments *args, u64 cookie) {
    u32 position = nibble(cookie, 28);
    return position ? (u32)argument(args, position - 1) : 64;
}

INLINE void leaves(struct regs *ctx, u64 cookie, u64 began, u64 device) {
    u64 id = pid_tgid();
    struct cell_of key = {.tgid = id >> 32, .function = cookie & 0xff};
    if (!nibble(cookie, 20))
        key.direction = nibble(cookie, 24);
    struct cell *value = cell(&key); /* the time of all directions is in one cell */
    if (value)
        add(&value->ns, (now_ns() - began) << nibble(cookie, 8));
    if ((cookie >> 32 & 1) && (u32)RESULT(ctx) == 0)
        note_context(id >> 32, device);
}

SEC("uprobe")
int session(struct regs *ctx) {
    u64 cookie = cookie_of(ctx), *saved = bpf_session_cookie();
    if (bpf_session_is_return()) {
        leaves(ctx, cookie, *saved >> 7, *saved & 127);
        return 0;
    }
    struct arguments args;
    take(ctx, &args);
    if (!enters(&args, cookie))
        return WITHOUT_RETURN;
    u64 device = device_of(&args, cookie);
    *saved = now_ns() << 7 | (device < 64 ? device : 64);
    return WITH_RETURN;
}

SEC("uprobe")
int entry(struct regs *ctx) {
    u64 cookie = cookie_of(ctx);
    struct arguments args;
    take(ctx, &args);
    if (!enters(&args, cookie))
        return 0;
    struct call call = {.thread = pid_tgid(), .function = cookie & 0xff};
    struct start start = {.at = now_ns(), .device = device_of(&args, cookie)};
    if (map_put(&underway, &call, &start, ANY) < 0)
        lose(1);
    return 0;
}

SEC("uprobe")
int leave(struct regs *ctx) {
    u64 cookie = cookie_of(ctx);
    struct call call = {.thread = pid_tgid(), .function = cookie & 0xff};
    struct start *start = map_get(&underway, &call);
    if (!start)
        return 0;
    leaves(ctx, cookie, start->at, start->device);
    map_drop(&underway, &call);
    return 0;
}

LICENSE;
