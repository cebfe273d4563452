/* A CUDA driver that does nothing. */
#include "body.h"

CALL(cuLaunchKernel, void)
CALL(cuLaunchKernelEx, void)
CALL(cuGraphLaunch, void)
WAIT(cuStreamSynchronize, void)
CALL(cuEventQuery, void)
CALL(cuMemcpyAsync, void *to, void *from, size_t bytes, void *stream)
CALL(cuMemcpyHtoDAsync_v2, void *to, void *from, size_t bytes, void *stream)
CALL(cuMemcpyDtoH_v2, void *to, void *from, size_t bytes)
CALL(cuCtxCreate_v2, void *context, unsigned flags, int device)
