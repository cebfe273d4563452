/* Copies what chosen processes write to their standard output and error. It stands at the entry of every system call of
 * the node, so it is for a job that has no file to read, and for a while. */
#include "bpf.h"

#if defined(TRACKSIDE_X86_64)
#define WRITE 1
#define WRITEV 20
#else
#define WRITE 64
#define WRITEV 66
#endif
#define MOST 16384 /* bytes of one record */
#define PARTS 4    /* records of one write, or of one writev: the rest is counted as lost */
#define QUIETLY 1 /* who reads looks now and then */

struct task_struct {
    int tgid;
} __attribute__((preserve_access_index));

struct record {
    u64 at;
    u32 tgid;
    u32 stream;
    u32 bytes;
    u32 zero;
    u8 data[MOST];
};
struct part {
    u64 base;
    u64 bytes;
};

TABLE(chosen, HASH, 8192, u32, u32, NO_PREALLOC); /* process -> bits of the streams that are wanted: 1 << 1, 1 << 2 */
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
    u32 size = bytes > MOST ? MOST : bytes;
    record->bytes = size;
    if (read_user(record->data, size, (void *)from) < 0 || ring_put(&ring, record, sizeof(*record) - MOST + size, QUIETLY) < 0)
        lose(size);
    if (bytes > size)
        lose(bytes - size);
}

SEC("tp_btf/sys_enter")
int writes(u64 *ctx) {
    u64 number = ctx[1];
    if (number != WRITE && number != WRITEV)
        return 0;
    u32 tgid = pid_tgid() >> 32, *wanted = map_get(&chosen, &tgid);
    if (!wanted)
        return 0;
    struct regs regs;
    read_kernel(&regs, sizeof(regs), (void *)ctx[0]);
    struct arguments given;
    take(&regs, &given);
    u64 stream = given.at[0];
    if (stream < 1 || stream > 2 || !(*wanted & (1 << stream)))
        return 0;
    struct part part = {.base = given.at[1], .bytes = given.at[2]};
    for (u32 at = 0; at < PARTS; at++) {
        if (number == WRITEV) {
            if (at >= given.at[2])
                return 0;
            read_user(&part, sizeof(part), (void *)(given.at[1] + at * sizeof(part)));
        }
        u64 size = number == WRITE && part.bytes > MOST && at + 1 < PARTS ? MOST : part.bytes;
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
    u32 *wanted = parent == child ? 0 : map_get(&chosen, &parent);
    if (wanted)
        map_put(&chosen, &child, wanted, ANY);
    return 0;
}

LICENSED;
