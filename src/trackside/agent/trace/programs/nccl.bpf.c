/* Follows NCCL's collectives: on which communicator and stream they are enqueued, and how far each stream is done.
 *
 * The host only enqueues a collective. Later CUDA calls show that it is done: an event that was recorded on the stream
 * after it, or the stream or device itself, is complete. So each stream has a lane: its collectives are numbered as they
 * are enqueued, an event stores the lane's number at the time of recording, and a successful query or wait marks the
 * lane as done up to that number.
 *
 * The probe's cookie describes the function:
 *   bits 0-7   number of the function
 *   bits 8-15  its kind: the enum below
 *   bits 16-19 position of the communicator, event or stream, from 0
 *   bits 20-23 position of the stream, or of the new communicator
 *   bits 24-27 position of the number of ranks
 *   bits 28-31 position of the rank; 15: none. After an identifier passed by value: position among the registers
 *   bits 32-35 position of the address of the communicator's identifier; 14: passed by value; 15: none
 *   bits 36-39 position of the color; 15: none
 */
#include "bpf.h"

#define SLOTS 512 /* collectives of a lane that may be in flight with their function known */
#define IDENTIFIER 128
#define ENTERED (1ULL << 63)
#define AGAIN 4
#define MAX_COMMUNICATORS 16

enum {
    COLLECTIVE = 1,
    GROUP_END,
    JOIN,     /* one communicator made */
    JOIN_ALL, /* an array of communicators made */
    LEAVE,
    RECORD,
    FORGET,
    EVENT,
    STREAM,
    DEVICE,
    ELAPSED,
};

#define NONE 15
#define BY_VALUE 14
#define IN_PROGRESS 7 /* ncclInProgress: a communicator that doesn't block */

struct handle { /* a pointer in a process: communicator, stream or event */
    u32 tgid;
    u32 zero;
    u64 address;
};
struct communicator {
    u64 serial; /* when it was first seen, monotonic ns: identifies it if its address is reused */
    u64 ended;
    u64 parent; /* serial of the one that it was split from */
    u64 splits; /* number made from it so far */
    u32 ranks;  /* 0: unknown, like the fields below: it was made before the trace began */
    s32 rank;
    s32 color;
    u32 split; /* number among its parent's splits, from 1 */
    u8 identifier[IDENTIFIER];
};
struct tally_of {
    u32 tgid;
    u32 function;
    u64 serial;
};
struct tally {
    u64 calls;
    u64 failed;
    u64 enqueue_ns;
    u64 device_ns; /* as the process measured them by events */
    u64 measured;
};
struct slot {
    u64 at; /* when the call returned; until then when it began, with ENTERED */
    u64 what; /* function << 56 | serial; 0: it failed */
};
struct lane {
    u64 enqueued;
    u64 done;
    u64 watched; /* whether an event, query or wait shows its progress */
    u64 zero;
    struct slot slots[SLOTS];
};
struct mark {
    u64 stream;
    u64 number;
};
struct call {
    u64 thread;
    u64 function;
};
struct underway {
    u64 at;
    u64 address;
    u64 stream;
    u64 number;
    u64 what;
};

TABLE(communicators, HASH, 8192, struct handle, struct communicator, NO_PREALLOC);
TABLE(tallies, HASH, 16384, struct tally_of, struct tally, NO_PREALLOC);
TABLE(lanes, HASH, 2048, struct handle, struct lane, NO_PREALLOC);
TABLE(marks, HASH, 32768, struct handle, struct mark, NO_PREALLOC);
TABLE(settled, HASH, 4096, u32, u64, NO_PREALLOC); /* process with lanes -> when its device was last idle */
TABLE(calls, HASH, 8192, struct call, struct underway, NO_PREALLOC);
TABLE(joining, HASH, 1024, struct call, struct communicator, NO_PREALLOC);
TABLE(blank, ARRAY, 1, u32, struct lane, 0); /* initial value of what is too large for a program's stack */

INLINE u32 nibble(u64 cookie, u32 at) {
    return (cookie >> at) & 15;
}

INLINE struct handle of(u64 address) {
    struct handle handle = {.tgid = pid_tgid() >> 32, .address = address};
    return handle;
}

INLINE struct call here(u64 cookie) {
    struct call call = {.thread = pid_tgid(), .function = cookie & 0xff};
    return call;
}

INLINE int keep(u64 cookie, struct underway *underway) {
    struct call call = here(cookie);
    underway->at = now_ns();
    if (map_put(&calls, &call, underway, ANY) == 0)
        return WITH_RETURN;
    lose(1);
    return WITHOUT_RETURN;
}

INLINE u64 serial(void) {
    return now_ns() & ((1ULL << 56) - 1);
}

/* The communicator's serial; one from before the trace is registered now. */
INLINE u64 serial_of(u64 address) {
    struct handle key = of(address);
    u32 zero = 0;
    struct communicator *value = map_get(&communicators, &key), *none = map_get(&blank, &zero);
    if (value)
        return value->serial;
    if (!none || (map_put(&communicators, &key, none, NOEXIST) < 0 && !map_get(&communicators, &key)))
        lose(1);
    value = map_get(&communicators, &key);
    if (!value)
        return 0;
    __sync_val_compare_and_swap(&value->serial, 0, serial());
    return value->serial;
}

INLINE struct tally *tally(u32 function, u64 serial) {
    struct tally_of key = {.tgid = pid_tgid() >> 32, .function = function, .serial = serial};
    struct tally *value = map_get(&tallies, &key);
    if (value)
        return value;
    struct tally none = {};
    if (map_put(&tallies, &key, &none, NOEXIST) < 0) {
        value = map_get(&tallies, &key);
        if (!value)
            lose(1);
        return value;
    }
    return map_get(&tallies, &key);
}

INLINE struct lane *lane(u64 stream) {
    struct handle key = of(stream);
    struct lane *value = map_get(&lanes, &key);
    if (value)
        return value;
    u32 zero = 0;
    u64 never = 0;
    struct lane *none = map_get(&blank, &zero);
    map_put(&settled, &key.tgid, &never, NOEXIST);
    if (none && map_put(&lanes, &key, none, NOEXIST) < 0 && !map_get(&lanes, &key))
        lose(1);
    return map_get(&lanes, &key);
}

INLINE int collective_begins(const struct arguments *args, u64 cookie) {
    u64 serial = serial_of(argument(args, nibble(cookie, 16)));
    struct tally *count = tally(cookie & 0xff, serial);
    if (count)
        add(&count->calls, 1);
    struct underway underway = {
        .stream = argument(args, nibble(cookie, 20)), .what = (cookie & 0xff) << 56 | serial, .number = ~0ULL};
    struct lane *on = lane(underway.stream);
    if (on) {
        underway.number = __sync_fetch_and_add(&on->enqueued, 1);
        struct slot *slot = &on->slots[underway.number % SLOTS];
        slot->at = now_ns() | ENTERED;
        slot->what = underway.what;
    }
    return keep(cookie, &underway);
}

INLINE void collective_enqueued(struct regs *ctx, const struct underway *call) {
    u32 result = RESULT(ctx), failed = result != 0 && result != IN_PROGRESS;
    struct tally *count = tally(call->what >> 56, call->what & ((1ULL << 56) - 1));
    if (count) {
        add(&count->enqueue_ns, now_ns() - call->at);
        if (failed)
            add(&count->failed, 1);
    }
    struct handle key = of(call->stream);
    struct lane *on = map_get(&lanes, &key);
    if (!on || call->number == ~0ULL || on->enqueued - call->number > SLOTS)
        return;
    struct slot *slot = &on->slots[call->number % SLOTS];
    slot->at = now_ns();
    if (failed)
        slot->what = 0;
}

INLINE int communicator_begins(const struct arguments *args, u64 cookie) {
    struct call call = here(cookie);
    u32 ranks = nibble(cookie, 24), rank = nibble(cookie, 28), identifier = nibble(cookie, 32), color = nibble(cookie, 36);
    u32 zero = 0;
    struct communicator *none = map_get(&blank, &zero), *made;
    if (none)
        map_put(&joining, &call, none, ANY);
    made = map_get(&joining, &call);
    if (!made) {
        lose(1);
        return WITHOUT_RETURN;
    }
    if (ranks != NONE)
        made->ranks = argument(args, ranks);
    made->rank = rank == NONE ? -1 : (s32)argument(args, rank);
    made->color = color == NONE ? -1 : (s32)argument(args, color);
    if (identifier == BY_VALUE)
        read_user(made->identifier, IDENTIFIER, (void *)args->structure);
    else if (identifier != NONE)
        read_user(made->identifier, IDENTIFIER, (void *)argument(args, identifier));
    if (color != NONE) {
        struct handle key = of(argument(args, nibble(cookie, 16)));
        struct communicator *parent;
        made->parent = serial_of(key.address);
        parent = map_get(&communicators, &key);
        if (parent)
            made->split = __sync_fetch_and_add(&parent->splits, 1) + 1;
    }
    struct underway underway = {.address = argument(args, nibble(cookie, 20))};
    return keep(cookie, &underway);
}

INLINE void communicator_made(struct regs *ctx, u64 cookie, const struct underway *start) {
    struct call call = here(cookie);
    struct communicator *made = map_get(&joining, &call);
    u32 result = RESULT(ctx), all = ((cookie >> 8) & 0xff) == JOIN_ALL;
    if (!made)
        return;
    if (result == 0 || result == IN_PROGRESS) {
        made->serial = serial();
        u32 many = all ? made->ranks : 1;
        for (u32 at = 0; at < MAX_COMMUNICATORS && at < many; at++) {
            struct handle key = of(0);
            read_user(&key.address, sizeof(key.address), (void *)(start->address + 8 * at));
            if (all)
                made->rank = at;
            if (key.address && map_put(&communicators, &key, made, ANY) < 0)
                lose(1);
            made->serial += 1;
        }
    }
    map_drop(&joining, &call);
}

INLINE void communicator_ends(u64 address) {
    struct handle key = of(address);
    struct communicator *value = map_get(&communicators, &key);
    if (value)
        value->ended = now_ns();
}

/* Stores after which of the stream's collectives an event was recorded, if the stream has any. */
INLINE void recorded(u64 event, u64 stream) {
    struct handle key = of(event), on = of(stream);
    struct lane *value = map_get(&lanes, &on);
    if (!value) {
        if (map_get(&marks, &key))
            map_drop(&marks, &key);
        return;
    }
    struct mark mark = {.stream = stream, .number = value->enqueued};
    value->watched = 1;
    if (map_put(&marks, &key, &mark, ANY) < 0)
        lose(1);
}

INLINE int settling_begins(const struct arguments *args, u64 cookie) {
    struct underway underway = {};
    u32 what = (cookie >> 8) & 0xff;
    if (what == DEVICE) {
        u32 tgid = pid_tgid() >> 32;
        return map_get(&settled, &tgid) ? keep(cookie, &underway) : WITHOUT_RETURN;
    }
    if (what == STREAM) {
        underway.stream = argument(args, nibble(cookie, 16));
    } else {
        struct handle key = of(argument(args, nibble(cookie, 16)));
        struct mark *mark = map_get(&marks, &key);
        if (!mark)
            return WITHOUT_RETURN;
        underway.stream = mark->stream;
        underway.number = mark->number;
        if (what == ELAPSED)
            underway.address = argument(args, 0);
    }
    struct handle on = of(underway.stream);
    struct lane *value = map_get(&lanes, &on);
    if (!value)
        return WITHOUT_RETURN;
    if (what == STREAM)
        underway.number = value->enqueued;
    value->watched = 1;
    return keep(cookie, &underway);
}

/* Milliseconds as a float, without floating point: ns. */
INLINE u64 ns_of(u32 bits) {
    u32 power = (bits >> 23) & 0xff;
    u64 part = (u64)((bits & 0x7fffff) | 0x800000) * 1000000; /* below 2^44; its value is part * 2^(power - 150) */
    if (bits >> 31 || power == 0 || power > 168)
        return 0;
    return power >= 150 ? part << (power - 150) : 150 - power < 64 ? part >> (150 - power) : 0;
}

INLINE void measured(const struct underway *call, struct lane *on) {
    u32 bits = 0;
    if (!call->number || on->enqueued - call->number >= SLOTS)
        return;
    u64 what = on->slots[(call->number - 1) % SLOTS].what;
    struct tally *count = what ? tally(what >> 56, what & ((1ULL << 56) - 1)) : 0;
    if (!count || read_user(&bits, sizeof(bits), (void *)call->address) < 0)
        return;
    add(&count->device_ns, ns_of(bits));
    add(&count->measured, 1);
}

INLINE void settles(struct regs *ctx, u64 cookie, const struct underway *call) {
    u32 what = (cookie >> 8) & 0xff, tgid = pid_tgid() >> 32;
    if ((u32)RESULT(ctx) != 0)
        return;
    if (what == DEVICE) {
        u64 *last = map_get(&settled, &tgid);
        if (last && *last < call->at)
            *last = call->at;
        return;
    }
    struct handle key = of(call->stream);
    struct lane *on = map_get(&lanes, &key);
    if (!on)
        return;
    for (int i = 0; i < AGAIN; i++) {
        u64 done = on->done;
        if (done >= call->number || __sync_val_compare_and_swap(&on->done, done, call->number) == done)
            break;
    }
    if (what == ELAPSED)
        measured(call, on);
}

INLINE int enters(struct regs *ctx) {
    u64 cookie = cookie_of(ctx);
    struct underway underway = {};
    struct arguments args;
    take(ctx, &args);
    switch ((cookie >> 8) & 0xff) {
    case COLLECTIVE:
        return collective_begins(&args, cookie);
    case GROUP_END:
        underway.what = (cookie & 0xff) << 56;
        underway.number = ~0ULL;
        return keep(cookie, &underway);
    case JOIN:
    case JOIN_ALL:
        return communicator_begins(&args, cookie);
    case LEAVE:
        communicator_ends(argument(&args, nibble(cookie, 16)));
        return WITHOUT_RETURN;
    case RECORD:
        recorded(argument(&args, nibble(cookie, 16)), argument(&args, nibble(cookie, 20)));
        return WITHOUT_RETURN;
    case FORGET: {
        struct handle key = of(argument(&args, nibble(cookie, 16)));
        if (map_get(&marks, &key))
            map_drop(&marks, &key);
        return WITHOUT_RETURN;
    }
    default:
        return settling_begins(&args, cookie);
    }
}

INLINE void leaves(struct regs *ctx) {
    u64 cookie = cookie_of(ctx);
    struct call call = here(cookie);
    struct underway *value = map_get(&calls, &call);
    if (!value)
        return;
    struct underway underway = *value;
    map_drop(&calls, &call);
    switch ((cookie >> 8) & 0xff) {
    case COLLECTIVE:
    case GROUP_END:
        collective_enqueued(ctx, &underway);
        return;
    case JOIN:
    case JOIN_ALL:
        communicator_made(ctx, cookie, &underway);
        return;
    default:
        settles(ctx, cookie, &underway);
    }
}

SEC("uprobe")
int session(struct regs *ctx) {
    if (!bpf_session_is_return())
        return enters(ctx);
    leaves(ctx);
    return 0;
}

SEC("uprobe")
int entry(struct regs *ctx) {
    enters(ctx);
    return 0;
}

SEC("uprobe")
int leave(struct regs *ctx) {
    leaves(ctx);
    return 0;
}

LICENSE;
