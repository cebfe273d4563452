/* The kernel's interface for our programs: types, helpers by number, maps, a call's arguments and result.
 *
 * The numbers never change, so no kernel header is needed. A uprobe's context has the registers in the layout of struct
 * user_pt_regs (aarch64) or struct pt_regs (x86_64), which is fixed for each architecture.
 */
#ifndef TRACKSIDE_BPF_H
#define TRACKSIDE_BPF_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* The kernel lets only programs with a GPL-compatible license read a process's memory; these have both.
 * The symbol can't be called as its section. */
#define LICENSE char license_name[] SEC("license") = "Dual MIT/GPL"
#define KSYM __attribute__((section(".ksyms"), weak))

#define TABLE(name, kind, max, key_type, value_type, how) \
    struct { \
        int (*type)[kind]; \
        int (*max_entries)[max]; \
        int (*map_flags)[how]; \
        key_type *key; \
        value_type *value; \
    } name SEC(".maps")
#define HASH 1
#define ARRAY 2
#define PERCPU_ARRAY 6
#define RINGBUF 27
#define NO_PREALLOC 1 /* allocates memory per entry, not for all entries at once */

#define ANY 0
#define NOEXIST 1

static void *(*map_get)(void *map, const void *key) = (void *)1;
static long (*map_put)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_drop)(void *map, const void *key) = (void *)3;
static u64 (*now_ns)(void) = (void *)5;
static u32 (*random_u32)(void) = (void *)7;
static u64 (*pid_tgid)(void) = (void *)14;
static long (*read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*ring_put)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static u64 (*cookie_of)(void *ctx) = (void *)174;

INLINE void add(u64 *to, u64 what) {
    __sync_fetch_and_add(to, what);
}

/* Integer and pointer arguments of a call. The kernel allows only fixed offsets into the context, so all are read. */
struct arguments {
    u64 at[8];
    u64 stack;     /* address of the arguments that are not in registers */
    u64 structure; /* address of a large third argument passed by value */
};
#if defined(TRACKSIDE_X86_64)
struct regs {
    u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define REGISTERS 6
#define RESULT(ctx) (((volatile struct regs *)(ctx))->ax)
INLINE void take(volatile struct regs *ctx, struct arguments *to) {
    to->at[0] = ctx->di;
    to->at[1] = ctx->si;
    to->at[2] = ctx->dx;
    to->at[3] = ctx->cx;
    to->at[4] = ctx->r8;
    to->at[5] = ctx->r9;
    to->at[6] = to->at[7] = 0;
    to->stack = to->structure = ctx->sp + 8; /* above the return address */
}
#elif defined(TRACKSIDE_AARCH64)
struct regs {
    u64 x[31], sp, pc, pstate;
};
#define REGISTERS 8
#define RESULT(ctx) (((volatile struct regs *)(ctx))->x[0])
INLINE void take(volatile struct regs *ctx, struct arguments *to) {
    to->at[0] = ctx->x[0];
    to->at[1] = ctx->x[1];
    to->at[2] = ctx->x[2];
    to->at[3] = ctx->x[3];
    to->at[4] = ctx->x[4];
    to->at[5] = ctx->x[5];
    to->at[6] = ctx->x[6];
    to->at[7] = ctx->x[7];
    to->stack = 0; /* none of the functions has more arguments */
    to->structure = ctx->x[2];
}
#else
#error "no register convention for this architecture"
#endif

INLINE u64 argument(const struct arguments *all, u32 position) {
    u64 value = 0;
    switch (position) {
    case 0: return all->at[0];
    case 1: return all->at[1];
    case 2: return all->at[2];
    case 3: return all->at[3];
    case 4: return all->at[4];
    case 5: return all->at[5];
    }
    if (position < REGISTERS)
        return position == 6 ? all->at[6] : all->at[7];
    if (all->stack)
        read_user(&value, sizeof(value), (void *)(all->stack + 8 * (position - REGISTERS)));
    return value;
}

TABLE(lost, PERCPU_ARRAY, 1, u32, u64, 0); /* events or bytes that were dropped */

INLINE void lose(u64 count) {
    u32 zero = 0;
    u64 *sum = map_get(&lost, &zero);
    if (sum)
        *sum += count;
}

/* For a uprobe at a function's entry and return: kernel 6.13 and later. */
extern _Bool bpf_session_is_return(void) KSYM;
extern u64 *bpf_session_cookie(void) KSYM;
#define WITH_RETURN 0
#define WITHOUT_RETURN 1

#endif
