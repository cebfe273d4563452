"""A process that calls libraries as it is told, a Python statement a line on its standard input; each is answered with
``value`` as JSON. Run as a script by ``callers.py``."""

import ctypes
import json
import os
import sys
import threading
import time

libraries = {}


class Identifier(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


def load(path):
    libraries[path.rpartition("/")[2].partition(".")[0]] = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def function(name):
    library = {"nc": "libnccl", "cud": "libcudart"}.get(name[:3] if name[:2] != "nc" else "nc", "libcuda")
    return getattr(libraries["libcudart" if name.startswith("cuda") else library], name)


def call(name, *given, times=1):
    """The last result of ``times`` calls, with integers as 64-bit ones."""
    made, result = function(name), None
    sent = [ctypes.c_uint64(each) if isinstance(each, int) else each for each in given]
    for _ in range(times):
        result = made(*sent)
    return result


def join(name, ranks, rank, identifier=b"", config=None):
    comm = ctypes.c_void_p()
    more = () if config is None else (config,)
    result = function(name)(ctypes.byref(comm), ranks, Identifier(identifier), rank, *more)
    return [result, comm.value]


def split(parent, color):
    comm = ctypes.c_void_p()
    function("ncclCommSplit")(ctypes.c_void_p(parent), color, 0, ctypes.byref(comm), None)
    return comm.value


def elapsed(start, end, milliseconds):
    ctypes.c_float.in_dll(libraries["libcudart"], "stub_ms").value = milliseconds
    return function("cudaEventElapsedTime")(
        ctypes.byref(ctypes.c_float()), ctypes.c_void_p(start), ctypes.c_void_p(end)
    )


def become(library, name, number):
    ctypes.c_int.in_dll(libraries[library], name).value = number


def in_threads(many, *given, times):
    started = [threading.Thread(target=call, args=given, kwargs={"times": times}) for _ in range(many)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    return many


def in_child(*given, times):
    """Fork, and stay there until killed."""
    child = os.fork()
    if not child:
        call(*given, times=times)
        time.sleep(600)
        os._exit(0)
    return child


if __name__ == "__main__":
    for line in sys.stdin:
        value = None
        exec(line)
        print(json.dumps(value), flush=True)
