/* An NCCL that does nothing but give communicators. */
#include "body.h"
#include <stdlib.h>

typedef struct { char internal[128]; } identifier;

static int make(void **to) {
    *to = malloc(64);
    return stub_work();
}

API int ncclCommInitRank(void **comm, int ranks, identifier id, int rank) { return make(comm); }
API int ncclCommInitRankConfig(void **comm, int ranks, identifier id, int rank, void *config) { return make(comm); }
API int ncclCommSplit(void *parent, int colour, int key, void **comm, void *config) {
    if (colour < 0) {
        *comm = NULL;
        return stub_work();
    }
    return make(comm);
}
API int ncclCommInitAll(void **comms, int ranks, const int *devices) {
    for (int rank = 0; rank < ranks; rank++)
        make(comms + rank);
    return stub_work();
}
CALL(ncclCommDestroy, void *comm)
CALL(ncclCommAbort, void *comm)
CALL(ncclGroupEnd, void)
CALL(ncclAllReduce, void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
CALL(ncclReduce, void *from, void *to, size_t count, int type, int op, int root, void *comm, void *stream)
CALL(ncclAllGather, void *from, void *to, size_t count, int type, void *comm, void *stream)
CALL(ncclReduceScatter, void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
CALL(ncclSend, void *from, size_t count, int type, int peer, void *comm, void *stream)
