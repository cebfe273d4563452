/* A CUDA runtime that does nothing; as the real one, it hands some calls on to the driver once it is told where that is. */
#define _GNU_SOURCE
#include "body.h"
#include <dlfcn.h>

static int (*launch)(void), (*wait_stream)(void), (*copy)(void), (*query)(void);

API void stub_drive(void) {
    launch = (int (*)(void))dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    wait_stream = (int (*)(void))dlsym(RTLD_DEFAULT, "cuStreamSynchronize");
    copy = (int (*)(void))dlsym(RTLD_DEFAULT, "cuMemcpyAsync");
    query = (int (*)(void))dlsym(RTLD_DEFAULT, "cuEventQuery");
}

NEST(cudaLaunchKernel, launch, void *f, size_t grid, size_t block, void **args, size_t shared, void *stream)
NEST(cudaLaunchKernelExC, launch, void *config, void *f, void **args)
NEST(cudaGraphLaunch, launch, void *graph, void *stream)
NEST(cudaMemcpyAsync, copy, void *to, void *from, size_t bytes, int kind, void *stream)
CALL(cudaMemcpy, void *to, void *from, size_t bytes, int kind)
CALL(cudaMemcpy2DAsync, void *to, size_t dp, void *from, size_t sp, size_t width, size_t height, int kind, void *stream)
CALL(cudaMemcpyPeerAsync, void *to, int td, void *from, int fd, size_t bytes, void *stream)
CALL(cudaSetDevice, int device)
WAIT(cudaDeviceSynchronize, void)
WAIT(cudaEventSynchronize, void *event)
NEST(cudaEventQuery, query, void *event)
CALL(cudaStreamQuery, void *stream)
CALL(cudaEventRecord, void *event, void *stream)
CALL(cudaEventRecordWithFlags, void *event, void *stream, unsigned flags)
CALL(cudaEventDestroy, void *event)

API int cudaStreamSynchronize(void *stream) {
    stub_hand_on(wait_stream);
    return stub_wait();
}

API int cudaEventElapsedTime(float *ms, void *start, void *end) {
    *ms = stub_ms;
    return stub_work();
}
