/* Copies what chosen processes write to standard output and error. It runs at every system call of the node, so it is
 * only for a job without an output file, and for a limited time. */
#include "bpf.h"

#if defined(TRACKSIDE_X86_64)
#define WRITE 1
#define WRITEV 20
#else
#define WRITE 64
#define WRITEV 66
#endif
#define MAX_BYTES 16384 /* bytes in one record */
#define PARTS 4    /* records per write or writev; the rest is counted as lost */
#define NO_WAKEUP 1 /* the reader polls */

struct task_struct {
    int tgid;
} __attribute__((preserve_access_index));

struct record {
    u64 at;
    u32 tgid;
    u32 stream;
    u32 bytes;
    u32 zero;
    u8 data[MAX_BYTES];
};
struct part {
    u64 base;
    u64 bytes;
};

TABLE(chosen, HASH, 8192, u32, u32, NO_PREALLOC); /* process -> bits of the streams to copy: 1 << 1, 1 << 2 */
TABLE(scratch, PERCPU_ARRAY, 1, u32, struct record, 0);
struct {
    int (*type)[RINGBUF];
    int (*max_entries)[8 << 20];
} ring SEC(".maps");

INLINE void copy(u32 tgid, u32 stream, u64 from, u64 bytes) {
    u32 zero = 0;
    struct record *record = map_get(&scratch, &zero);
    if (!record)
        return;
    record->at = now_ns();
    record->tgid = tgid;
    record->stream = stream;
    u32 size = bytes > MAX_BYTES ? MAX_BYTES : bytes;
    record->bytes = size;
    if (read_user(record->data, size, (void *)from) < 0 || ring_put(&ring, record, sizeof(*record) - MAX_BYTES + size, NO_WAKEUP) < 0)
        lose(size);
    if (bytes > size)
        lose(bytes - size);
}

SEC("tp_btf/sys_enter")
int writes(u64 *ctx) {
    u64 number = ctx[1];
    if (number != WRITE && number != WRITEV)
        return 0;
    u32 tgid = pid_tgid() >> 32, *streams = map_get(&chosen, &tgid);
    if (!streams)
        return 0;
    struct regs regs;
    read_kernel(&regs, sizeof(regs), (void *)ctx[0]);
    struct arguments args;
    take(&regs, &args);
    u64 stream = args.at[0];
    if (stream < 1 || stream > 2 || !(*streams & (1 << stream)))
        return 0;
    struct part part = {.base = args.at[1], .bytes = args.at[2]};
    for (u32 at = 0; at < PARTS; at++) {
        if (number == WRITEV) {
            if (at >= args.at[2])
                return 0;
            read_user(&part, sizeof(part), (void *)(args.at[1] + at * sizeof(part)));
        }
        u64 size = number == WRITE && part.bytes > MAX_BYTES && at + 1 < PARTS ? MAX_BYTES : part.bytes;
        copy(tgid, stream, part.base, size);
        if (number == WRITE) {
            part.base += size;
            part.bytes -= size;
            if (!part.bytes)
                return 0;
        }
    }
    return 0;
}

SEC("tp_btf/sched_process_fork")
int forks(u64 *ctx) {
    u32 parent = ((struct task_struct *)ctx[0])->tgid, child = ((struct task_struct *)ctx[1])->tgid;
    u32 *streams = parent == child ? 0 : map_get(&chosen, &parent);
    if (streams)
        map_put(&chosen, &child, streams, ANY);
    return 0;
}

LICENSE;
